"""The tools a row offers: whether each is a usable function schema, and whether a call's arguments fit it.

Flows in: a row's list of tools. Flows out: faults, and `Offer`s to hold calls against. Invariant: a verdict
depends on the tool's JSON text alone, so each text is judged once and remembered; arguments that pass here
are never refused in an episode, which reads schemas in the same way (`envace/chat/tool_schema.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from envace.chat.tool_schema import ToolSchema, read_schema, sentence
from envace.data.faults import Fault, Reject, shape_fault
from envace.types import JSON

FaultBelow = tuple[Reject, str, str]  # reason, field below the tool, message
PARAMETERS = ".function.parameters"


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool: what is wrong with it, and what its calls must give."""

    name: str | None
    fault: FaultBelow | None = None
    loose: FaultBelow | None = None
    """Why the published loader cannot read it."""
    schema: ToolSchema | None = None
    """None where nothing is known of what calls must give."""


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


@lru_cache(maxsize=4096)
def _offer(text: bytes) -> Offer:
    tool = msgspec.json.decode(text)
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return Offer(None, (Reject.BAD_TOOLS, ".function", "must be an object"))
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        return Offer(None, (Reject.BAD_TOOLS, ".function.name", "must be a name"))
    unread = shape_fault(StrictTool, tool, "", Reject.LOOSE_TOOL)
    loose = (unread.reason, unread.field, unread.message) if unread else None
    if parameters is None:
        parameters = {}  # a tool without parameters
    if not isinstance(parameters, dict):
        return Offer(name, (Reject.BAD_TOOLS, PARAMETERS, "must be an object"), loose)
    try:
        schema = read_schema(msgspec.json.encode(parameters).decode())
    except ValueError as e:
        return Offer(name, (Reject.BAD_TOOLS, PARAMETERS, str(e)), loose)
    kind = parameters.get("type", "object")
    if kind != "object" and "object" not in kind:
        fault = Reject.BAD_TOOLS, f"{PARAMETERS}.type", f"must be 'object', not {kind!r}"
        return Offer(name, fault, loose)
    return Offer(name, None, loose, schema)


def tool_faults(tools: JSON, offers: list[Offer], at: str, strict: bool = False) -> Iterator[Fault]:
    """Every fault of a row's tools. `strict` adds those the published loader would drop the row for."""
    if not isinstance(tools, list):
        yield Fault(Reject.BAD_TOOLS, at, "is missing" if tools is None else "must be a list")
        return
    if not tools:
        yield Fault(Reject.BAD_TOOLS, at, "is empty")
    names: set[str | None] = set()
    for i, offer in enumerate(offers):
        for found in (offer.fault, offer.loose if strict else None):
            if found:
                yield Fault(found[0], f"{at}[{i}]{found[1]}", found[2])
        if offer.name in names:
            yield Fault(Reject.DUPLICATE_TOOL, f"{at}[{i}].function.name", f"{offer.name!r} is offered twice")
        if offer.name is not None:
            names.add(offer.name)


def argument_faults(offer: Offer, arguments: dict[str, JSON], at: str) -> list[Fault]:
    """Where a call's arguments do not fit its tool, what is missing first, then in their order. A parameter
    that the schema never mentions is a fault, unless it says what further ones may be."""
    if offer.schema is None:
        return []
    order = {name: n for n, name in enumerate(arguments)}
    unknown = {name for name in arguments if not offer.schema.knows(name)}
    told = list[tuple[int, str]]()
    for error in offer.schema.errors(arguments):
        path, value = list(error.absolute_path), error.validator_value
        if error.validator == "required" and not path:
            told += [(-1, f"{offer.name} needs {name!r}") for name in value if name not in arguments]
        elif error.validator == "additionalProperties" and value is False and not path:
            unknown |= {name for name in arguments if name not in error.schema.get("properties", {})}
        elif error.validator == "type" and len(path) == 1:
            words = value if isinstance(value, str) else " or ".join(value)
            told.append((order[path[0]], f"{path[0]!r} must be {words}, not {error.instance!r:.40}"))
        else:
            told.append((order[path[0]] if path else len(order), sentence(error)))
    told += [(order[name], f"{name!r} is no parameter of {offer.name}") for name in unknown]
    return [Fault(Reject.BAD_ARGUMENTS, at, words) for _, words in sorted(dict.fromkeys(told))]
