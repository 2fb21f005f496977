"""The tools a row offers: whether each is a usable function schema, and whether a call's arguments fit it.

Flows in: a row's list of tools. Flows out: faults, and `Offer`s to hold calls against.
Invariant: a verdict depends on the tool's JSON text alone, so each text is judged once and remembered; what is
remembered is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jsonschema
import msgspec

from envace.data.faults import Fault, Reject, shape_fault
from envace.data.plainschema import is_plain

Part = tuple[Reject, str, str]  # reason, field below the tool, message
PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,), "null": (type(None),),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool: what is wrong with it, and what its calls must give."""

    name: str | None
    faults: tuple[Part, ...] = ()
    loose: Part | None = None  # why the published loader cannot read it
    required: tuple[str, ...] = ()
    kinds: dict[str, tuple[type, ...]] = field(default_factory=dict)  # parameter -> types; () is any
    words: dict[str, str] = field(default_factory=dict)  # parameter -> its types in words
    open: bool = False  # parameters beyond those named are allowed


class StrictProperty(msgspec.Struct):
    type: str
    description: str | None = None
    enum: list[str] | None = None


class StrictParameters(msgspec.Struct):
    type: str
    properties: dict[str, StrictProperty]
    required: list[str]


class StrictFunction(msgspec.Struct):
    name: str
    description: str
    parameters: StrictParameters
    strict: bool = False


class StrictTool(msgspec.Struct):
    """What the published loader accepts: one type a parameter, enumerations of text, nothing left out."""

    type: str
    function: StrictFunction


def read_tools(tools: Any) -> list[Offer]:
    """An offer for each tool of a list of plain data; empty when it is no list."""
    return [_offer(msgspec.json.encode(tool)) for tool in tools] if isinstance(tools, list) else []


def tool_faults(tools: Any, offers: list[Offer], at: str, strict: bool = False) -> Iterator[Fault]:
    """Every fault of a row's tools. `strict` adds those the published loader would drop the row for."""
    if not isinstance(tools, list):
        yield Fault(Reject.BAD_TOOLS, at, "is missing" if tools is None else "must be a list")
        return
    if not tools:
        yield Fault(Reject.BAD_TOOLS, at, "is empty")
    names: set[str] = set()
    for i, offer in enumerate(offers):
        for reason, below, message in offer.faults:
            yield Fault(reason, f"{at}[{i}]{below}", message)
        if offer.name in names:
            yield Fault(Reject.DUPLICATE_TOOL, f"{at}[{i}].function.name", f"{offer.name!r} is offered twice")
        if strict and offer.loose:
            yield Fault(offer.loose[0], f"{at}[{i}]{offer.loose[1]}", offer.loose[2])
        if offer.name is not None:
            names.add(offer.name)


def argument_faults(offer: Offer, arguments: dict[str, Any], at: str) -> Iterator[Fault]:
    """Where a call's arguments do not fit its tool: required, known, of the right basic type."""
    for name in offer.required:
        if name not in arguments:
            yield Fault(Reject.BAD_ARGUMENTS, at, f"{offer.name} needs {name!r}")
    for name, value in arguments.items():
        kinds = offer.kinds.get(name)
        if kinds is None:
            if not offer.open:
                yield Fault(Reject.BAD_ARGUMENTS, at, f"{name!r} is no parameter of {offer.name}")
        elif kinds and not _is(value, kinds):
            yield Fault(Reject.BAD_ARGUMENTS, at, f"{name!r} must be {offer.words[name]}, not {value!r:.40}")


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (int in kinds and isinstance(value, float) and value.is_integer())


@lru_cache(maxsize=4096)
def _offer(text: bytes) -> Offer:
    tool = msgspec.json.decode(text)
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return Offer(None, ((Reject.BAD_TOOLS, ".function", "must be an object"),))
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return Offer(None, ((Reject.BAD_TOOLS, ".function.name", "must be a name"),))
    parameters = function.get("parameters")
    faults = tuple(_parameter_faults(parameters))
    loose = shape_fault(StrictTool, tool, "", Reject.LOOSE_TOOL)
    told = (loose.reason, loose.field, loose.message) if loose else None
    if faults:
        return Offer(name, faults, told, open=True)  # of what its calls must give nothing is known
    if not parameters:
        return Offer(name, loose=told)
    return Offer(name, (), told, *_expected(parameters))


def _parameter_faults(schema: Any) -> Iterator[Part]:
    at = ".function.parameters"
    if schema is None:
        return  # a tool without parameters
    if not isinstance(schema, dict):
        yield Reject.BAD_TOOLS, at, "must be an object"
        return
    if not is_plain(schema):
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except (jsonschema.SchemaError, RecursionError) as e:
            yield Reject.BAD_TOOLS, at, f"is no JSON schema: {getattr(e, 'message', e)}"
    if schema.get("type", "object") != "object":
        yield Reject.BAD_TOOLS, f"{at}.type", f"must be 'object', not {schema['type']!r}"


def _expected(schema: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any], dict[str, str], bool]:
    """What a call must give: required names, types of the named parameters, both for people; whether more may come."""
    said = {
        name: part.get("type") if isinstance(part, dict) else None
        for name, part in schema.get("properties", {}).items()
    }
    lists = {name: [kind] if isinstance(kind, str) else kind or [] for name, kind in said.items()}
    kinds = {name: tuple(t for kind in names for t in PYTHON[kind]) for name, names in lists.items()}
    words = {name: " or ".join(names) for name, names in lists.items()}
    is_open = schema.get("additionalProperties", False) is not False
    return tuple(schema.get("required", ())), kinds, words, is_open
