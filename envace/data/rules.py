"""Rules for a reference dialogue and its tools, one function a rule.

Flows in: the messages of a whole dialogue and the tools it may call. Flows out: faults, each rule's with a
reason code of its own. Invariant: a rule looks at nothing but the dialogue and the tools, and never raises,
however odd the row; rules do not hide one another, so the hits of one do not depend on the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from envace.data import jsontext
from envace.data.faults import Fault, Reject, shape_fault
from envace.data.offers import Offer, argument_faults
from envace.types import JSON

ROLES = ("system", "user", "assistant", "tool", "observation")
OPEN, CLOSE = "<think>", "</think>"
TAGS = re.compile("</?think>")
RESPONSE_TAGS = re.compile("</?tool_response>")


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Rules that only some data sets keep."""

    require_thinking: bool = False
    """Every assistant message must hold thoughts."""
    strict_tools: bool = False
    """Every tool must be readable by the published loader."""


DEFAULTS = RuleOptions()


class FunctionShape(msgspec.Struct):
    name: str
    arguments: JSON = None


class CallShape(msgspec.Struct):
    function: FunctionShape


class MessageShape(msgspec.Struct):
    """A message as plain data must be."""

    role: str
    content: str | None = None
    tool_calls: list[CallShape] | None = None


class Said(NamedTuple):
    """One message, ready for the rules."""

    at: str
    role: str
    content: str
    calls: list[JSON]


@dataclass(slots=True)
class Dialogue:
    """What the rules see."""

    said: list[Said]
    offers: dict[str, Offer] | None
    """By the tool's name; None where the tools cannot be read, so that nothing is known of calls."""
    options: RuleOptions = DEFAULTS
    arguments: list[JSON] = field(default_factory=list)
    """Of every call in order, once `fit_tools` has read them."""


def message_faults(messages: JSON, at: str) -> list[Fault]:
    """What keeps a list of messages from being read at all."""
    if fault := shape_fault(list[MessageShape], messages, at):
        return [fault]
    return [
        Fault(Reject.ROLE_ORDER, f"{at}[{i}].role", f"{m['role']!r} is none of {', '.join(ROLES)}")
        for i, m in enumerate(messages)
        if m["role"] not in ROLES
    ]


def said(messages: Sequence[JSON], at: str) -> list[Said]:
    """Messages that have the right shape, ready for the rules."""
    roles = ("tool" if m["role"] == "observation" else m["role"] for m in messages)
    return [
        Said(f"{at}[{i}]", role, m.get("content") or "", m.get("tool_calls") or [])
        for i, (m, role) in enumerate(zip(messages, roles))
    ]


FOLLOWS = {"": "system user", "system": "user", "user": "assistant", "tool": "assistant", "assistant": "user"}
"""What an ordinary message is followed by; tool messages are counted against calls before them instead."""


def role_order(d: Dialogue) -> Iterator[Fault]:
    """[system,] user, assistants and tools, ending on an assistant without calls; only assistants call."""
    before = Said("", "", "", [])
    for m in d.said:
        if m.calls and m.role != "assistant":
            yield Fault(Reject.ROLE_ORDER, f"{m.at}.tool_calls", "only an assistant may call tools")
            return
        counted = m.role == "tool" or before.calls  # a missing or extra tool message is `result_count`'s
        if not counted and m.role not in FOLLOWS[before.role].split():
            where = f"after {before.role!r}" if before.role else "first"
            yield Fault(Reject.ROLE_ORDER, f"{m.at}.role", f"{m.role!r} cannot stand {where}")
            return
        before = m
    if before.role != "assistant" or before.calls:
        at = d.said[0].at.rpartition("[")[0] if d.said else "messages"
        yield Fault(Reject.ROLE_ORDER, at, "must end on an assistant message without calls")


def result_count(d: Dialogue) -> Iterator[Fault]:
    """An assistant's k calls are followed by exactly k tool messages."""
    waiting = 0
    for m in d.said:
        if m.role == "tool":
            if not waiting:
                yield Fault(Reject.RESULT_COUNT, m.at, "answers no call")
                return
            waiting -= 1
        elif waiting:
            yield Fault(Reject.RESULT_COUNT, m.at, f"{waiting} more tool message(s) should stand here")
            return
        elif m.role == "assistant":
            waiting = len(m.calls)


def results_are_json(d: Dialogue) -> Iterator[Fault]:
    """Every tool message is one JSON value."""
    for m in d.said:
        if m.role == "tool":
            try:
                jsontext.read(m.content)
            except ValueError as e:
                yield Fault(Reject.RESULT_NOT_JSON, f"{m.at}.content", f"is not JSON: {e}")


def fit_tools(d: Dialogue) -> Iterator[Fault]:
    """Every call names an offered tool, and its arguments fit the tool's schema."""
    for m in d.said:
        for k, call in enumerate(m.calls):
            spot, function = f"{m.at}.tool_calls[{k}].function", call["function"]
            arguments = read_arguments(function)
            d.arguments.append(arguments)
            offer = d.offers.get(function["name"]) if d.offers is not None else None
            if offer is None and d.offers is not None:
                yield Fault(
                    Reject.UNKNOWN_TOOL, f"{spot}.name", f"{function['name']!r} is not among the tools"
                )
            if not isinstance(arguments, dict):
                words = "must be the JSON text of an object, each key once"
                yield Fault(Reject.WRONG_TYPE, f"{spot}.arguments", words)
            elif offer is not None:
                yield from argument_faults(offer, arguments, f"{spot}.arguments")


def read_arguments(function: dict[str, JSON]) -> JSON:
    """A call's arguments as data; None when they do not parse.

    Given as an object they may come from parquet, where an absent key reads as null and an object without
    keys too: nulls in it are no arguments. JSON text keeps them."""
    given = function.get("arguments")
    try:
        if isinstance(given, str):
            return jsontext.read(given)
        return jsontext.without_nulls({} if given is None else given)
    except (ValueError, RecursionError):
        return None


def no_response_tags(d: Dialogue) -> Iterator[Fault]:
    """An assistant does not write tool responses itself."""
    for m in d.said:
        if m.role == "assistant" and "tool_response>" in m.content and RESPONSE_TAGS.search(m.content):
            yield Fault(Reject.RESPONSE_TAG, f"{m.at}.content", "holds a tool_response tag")


def thoughts_in_place(d: Dialogue) -> Iterator[Fault]:
    """One pair of think tags at most, at the start of an assistant message, closed; none anywhere else."""
    for m in d.said:
        tags = TAGS.findall(m.content) if "think>" in m.content else []
        if not tags:
            if m.role == "assistant" and d.options.require_thinking:
                yield Fault(Reject.NO_THINKING, f"{m.at}.content", "holds no thoughts")
        elif m.role != "assistant":
            yield Fault(Reject.BAD_THINKING, f"{m.at}.content", f"a {m.role} message holds a think tag")
        elif tags != [OPEN, CLOSE] or not m.content.lstrip().startswith(OPEN):
            yield Fault(
                Reject.BAD_THINKING, f"{m.at}.content", "must begin with its one closed pair of think tags"
            )


def no_empty_content(d: Dialogue) -> Iterator[Fault]:
    """Every message says something to its reader; an assistant message may call tools instead."""
    for m in d.said:
        visible = m.content.rpartition(CLOSE)[2] if m.role == "assistant" else m.content
        if not m.calls and not visible.strip():
            yield Fault(Reject.EMPTY_CONTENT, f"{m.at}.content", "is empty")


RULES: tuple[Callable[[Dialogue], Iterator[Fault]], ...] = (
    role_order,
    result_count,
    fit_tools,
    results_are_json,
    no_response_tags,
    thoughts_in_place,
    no_empty_content,
)
