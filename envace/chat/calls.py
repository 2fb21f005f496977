"""What ACT wrote -> thinking, visible text and calls, in both grammars (docs/tool-calls.md shows every case).

Either every block of a message is well formed, or the message yields no call and exactly one named failure.
Calls quoted inside thinking are no calls unless the method says so (`thought_calls`). Time grows with the
length of the text and with nothing else.

strict      `<tool_call>` JSON `</tool_call>`, white space around the JSON optional. The JSON is an object
            {"name": text, "arguments": object} ("parameters" is accepted where "arguments" is absent) or a
            non-empty list of such. Tags inside JSON strings are text.
published   what the published code reads, but for what would break later readers: characters no tokenizer
            takes are replaced first, values nested deeper than `MAX_DEPTH` and keys that become one are no
            JSON, NaN and infinities stand as their names. A block stands on lines of its own and ends at the
            first closing tag. `parameters` goes before `arguments`, which may be any value but null. An empty
            text and an empty list of calls are replies; text after the first block is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from envace.chat.text import (
    BREAK,
    blocks_on_lines,
    body_end,
    json_problem,
    loose_loads,
    sanitise,
    split_parts,
    split_thinking,
    strict_loads,
    tidy,
)
from envace.types import JSON, FailureReason, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ThoughtCalls = Literal["ignore", "execute"]


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """`content` keeps broken call markup when `failure` is set, so that history shows what was written."""

    thinking: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    failure: FailureReason | None = None
    detail: str = ""


class Malformed(Exception):
    """Text that breaks the grammar: the failure's name and a short sentence."""

    def __init__(self, failure: FailureReason, detail: str):
        super().__init__(detail)
        self.failure, self.detail = failure, detail


def render_calls(calls: Iterable[ToolCall]) -> str:
    """The text a policy writes to make these calls, in the form the Qwen3 chat template uses."""
    blocks = (json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) for c in calls)
    return "\n".join(f"{OPEN}\n{block}\n{CLOSE}" for block in blocks)


def parse_assistant(text: str, *, thought_calls: ThoughtCalls = "ignore") -> ParsedReply:
    """Read one assistant text strictly. Never raises; `failure` is EMPTY_OUTPUT when there is neither call
    nor text.

    With `execute`, blocks inside thoughts are calls too, and are taken out of the thinking like any other.
    """
    text = sanitise(text)
    try:
        if thought_calls == "execute":
            calls, outside = _scan(text)
            thinking, visible = split_parts(outside)
        else:
            thinking, visible = split_parts(text)
            calls, visible = _scan(visible)
    except Malformed as e:
        return ParsedReply(*split_thinking(text), (), e.failure, e.detail)
    content = tidy(visible)
    if not calls and not content:
        return ParsedReply(thinking, "", (), FailureReason.EMPTY_OUTPUT, "no visible text")
    return ParsedReply(thinking, content, tuple(calls))


def published_reply(text: str, *, thought_calls: ThoughtCalls = "ignore") -> ParsedReply:
    """Read one assistant text as the published code does. Never raises."""
    text = sanitise(text)
    thinking, visible = split_thinking(text)
    read = text if thought_calls == "execute" else split_parts(text)[1]
    if OPEN not in read:
        return ParsedReply(thinking, visible)
    try:
        bodies = list(blocks_on_lines(read, "tool_call"))
        if not bodies:
            raise Malformed(FailureReason.NO_CALL_FOUND, "no call on lines of its own")
        calls = [call for body in bodies for call in _calls(body, strict=False)]
    except Malformed as e:
        return ParsedReply(thinking, visible, (), e.failure, e.detail)
    if not calls:
        return ParsedReply(thinking, visible)
    before = read[: read.index(f"\n{OPEN}\n")]
    if thought_calls == "execute":
        thinking, before = split_thinking(before)
    return ParsedReply(thinking, tidy(before), tuple(calls))


def _scan(text: str) -> tuple[list[ToolCall], str]:
    """The calls of a text, and the text with `BREAK` in the place of every block."""
    calls, parts, at = [], [], 0
    while (opened := text.find(OPEN, at)) >= 0:
        parts.append(text[at:opened])
        start = opened + len(OPEN)
        end = body_end(text, start)
        if not text.startswith(CLOSE, end) and (end := text.find(CLOSE, start)) < 0:
            raise Malformed(FailureReason.NO_CALL_FOUND, "a call is opened but not closed")
        calls += _calls(text[start:end], strict=True)
        at = end + len(CLOSE)
    outside = BREAK.join([*parts, text[at:]])
    if CLOSE in outside:
        raise Malformed(FailureReason.NO_CALL_FOUND, "a call is closed that was never opened")
    return calls, outside


def _calls(body: str, strict: bool) -> list[ToolCall]:
    """The calls of one block's text. Raises Malformed."""
    try:
        value = strict_loads(body) if strict else loose_loads(body)
    except ValueError as e:
        raise Malformed(FailureReason.BAD_JSON, f"the call is not JSON: {json_problem(e)}") from None
    if strict and value == []:
        raise Malformed(FailureReason.NO_CALL_FOUND, "the list of calls is empty")
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        given: dict[str, JSON] = entry if isinstance(entry, dict) else {}
        if strict and given is not entry:
            raise Malformed(FailureReason.NO_ARGUMENTS, "a call must be an object with name and arguments")
        first, other = ("arguments", "parameters") if strict else ("parameters", "arguments")
        arguments, name = given.get(first, given.get(other)), given.get("name")
        if strict and not isinstance(arguments, dict):
            raise Malformed(FailureReason.NO_ARGUMENTS, "arguments must be an object")
        if arguments is None:
            raise Malformed(FailureReason.NO_ARGUMENTS, "the call has no arguments")
        if not isinstance(name, str) or not name.strip():
            raise Malformed(FailureReason.NO_NAME, "the call has no name")
        calls.append(ToolCall(name=name.strip() if strict else name, arguments=arguments))
    return calls
