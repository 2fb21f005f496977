"""The tools a row offers: whether each is a usable function schema, and whether a call's arguments fit it.

Flows in: a row's list of tools. Flows out: faults, and `Offer`s to hold calls against. Invariant: a verdict
depends on the tool's JSON text alone, so each text is judged once and remembered; what is remembered is
bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import jsonschema
import msgspec

from envace.data.faults import Fault, Reject, shape_fault
from envace.types import JSON

FaultBelow = tuple[Reject, str, str]  # reason, field below the tool, message
NOT_AN_OBJECT: FaultBelow = Reject.BAD_TOOLS, ".function", "must be an object"
NO_NAME: FaultBelow = Reject.BAD_TOOLS, ".function.name", "must be a name"
PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool: what is wrong with it, and what its calls must give."""

    name: str | None
    faults: tuple[FaultBelow, ...] = ()
    loose: FaultBelow | None = None
    """Why the published loader cannot read it."""
    required: tuple[str, ...] = ()
    types: dict[str, list[str]] = field(default_factory=dict)
    """Parameter -> names of the JSON types it may have; none is any."""
    open: bool = False
    """Parameters beyond those named are allowed."""


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


def read_tools(tools: JSON) -> list[Offer]:
    """An offer for each tool of a list of plain data; empty when it is no list."""
    return [_offer(msgspec.json.encode(tool)) for tool in tools] if isinstance(tools, list) else []


def tool_faults(tools: JSON, offers: list[Offer], at: str, strict: bool = False) -> Iterator[Fault]:
    """Every fault of a row's tools. `strict` adds those the published loader would drop the row for."""
    if not isinstance(tools, list):
        yield Fault(Reject.BAD_TOOLS, at, "is missing" if tools is None else "must be a list")
        return
    if not tools:
        yield Fault(Reject.BAD_TOOLS, at, "is empty")
    names: set[str | None] = set()
    for i, offer in enumerate(offers):
        for reason, below, message in offer.faults:
            yield Fault(reason, f"{at}[{i}]{below}", message)
        if offer.name in names:
            yield Fault(Reject.DUPLICATE_TOOL, f"{at}[{i}].function.name", f"{offer.name!r} is offered twice")
        if strict and offer.loose:
            yield Fault(offer.loose[0], f"{at}[{i}]{offer.loose[1]}", offer.loose[2])
        if offer.name is not None:
            names.add(offer.name)


def argument_faults(offer: Offer, arguments: dict[str, JSON], at: str) -> Iterator[Fault]:
    """Where a call's arguments do not fit its tool: required, known, of the right basic type."""
    for name in offer.required:
        if name not in arguments:
            yield Fault(Reject.BAD_ARGUMENTS, at, f"{offer.name} needs {name!r}")
    for name, value in arguments.items():
        types = offer.types.get(name)
        if types is None:
            if not offer.open:
                yield Fault(Reject.BAD_ARGUMENTS, at, f"{name!r} is no parameter of {offer.name}")
        elif types and not any(_is(value, kind) for kind in types):
            words = " or ".join(types)
            yield Fault(Reject.BAD_ARGUMENTS, at, f"{name!r} must be {words}, not {value!r:.40}")


def _is(value: JSON, kind: str) -> bool:
    """As JSON schema has it: true is no number, 2.0 is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    return whole or isinstance(value, PYTHON[kind])


@lru_cache(maxsize=4096)
def _offer(text: bytes) -> Offer:
    tool = msgspec.json.decode(text)
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return Offer(None, (NOT_AN_OBJECT,))
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        return Offer(None, (NO_NAME,))
    fault = shape_fault(StrictTool, tool, "", Reject.LOOSE_TOOL)
    loose = (fault.reason, fault.field, fault.message) if fault else None
    if faults := tuple(_parameter_faults(schema)):
        return Offer(name, faults, loose, open=True)  # of what its calls must give nothing is known
    if not schema:
        return Offer(name, loose=loose)
    said = {
        key: part.get("type") if isinstance(part, dict) else None
        for key, part in schema.get("properties", {}).items()
    }
    types = {key: [kind] if isinstance(kind, str) else kind or [] for key, kind in said.items()}
    is_open = schema.get("additionalProperties", False) is not False
    return Offer(name, (), loose, tuple(schema.get("required", ())), types, is_open)


def _parameter_faults(schema: JSON) -> Iterator[FaultBelow]:
    at = ".function.parameters"
    if schema is None:
        return  # a tool without parameters
    if not isinstance(schema, dict):
        yield Reject.BAD_TOOLS, at, "must be an object"
        return
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError) as e:
        yield Reject.BAD_TOOLS, at, f"is no JSON schema: {getattr(e, 'message', e)}"
    if schema.get("type", "object") != "object":
        yield Reject.BAD_TOOLS, f"{at}.type", f"must be 'object', not {schema['type']!r}"
