"""The tool-call grammar (`grammar: strict`): what ACT wrote -> thinking, visible text and calls.

Flows in: the decoded text of one ACT generation. Flows out: `ParsedReply`; or text for calls
(`render_calls`).
Invariant: either every block of a message is well formed, or the message yields no call and exactly one named
failure. Calls quoted inside thinking are not calls unless the method says so (`thought_calls`). Time grows
with the length of the text and with nothing else. docs/tool-calls.md shows every case.

Grammar: `<tool_call>` JSON `</tool_call>`, white space around the JSON optional. The JSON is an object
{"name": text, "arguments": object} ("parameters" is accepted where "arguments" is absent) or a non-empty list
of such. Tags inside JSON strings are text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from envace.chat.text import BREAK, body_end, clip, sanitise, split_parts, split_thinking, strict_loads, tidy
from envace.types import JSON, FailureReason, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


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


def parse_assistant(text: str, *, thought_calls: Literal["ignore", "execute"] = "ignore") -> ParsedReply:
    """Split one assistant text. Never raises; `failure` is EMPTY_OUTPUT when there is neither call nor text.

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


def render_calls(calls: Iterable[ToolCall]) -> str:
    """The text a policy writes to make these calls, in the form the Qwen3 chat template uses."""
    blocks = (json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) for c in calls)
    return "\n".join(f"{OPEN}\n{block}\n{CLOSE}" for block in blocks)


def _scan(text: str) -> tuple[list[ToolCall], str]:
    """The calls of a text, and the text with `BREAK` in the place of every block."""
    calls, parts, at = [], [], 0
    while (start := text.find(OPEN, at)) >= 0:
        parts.append(text[at:start])
        body, at = _block(text, start + len(OPEN))
        calls += _calls(body)
    outside = BREAK.join([*parts, text[at:]])
    if CLOSE in outside:
        raise Malformed(FailureReason.NO_CALL_FOUND, "a call is closed that was never opened")
    return calls, outside


def _block(text: str, start: int) -> tuple[JSON, int]:
    """The JSON value of a block whose opening tag ends at `start`, and the index after its closing tag."""
    end = body_end(text, start)
    if not text.startswith(CLOSE, end) and (end := text.find(CLOSE, start)) < 0:
        raise Malformed(FailureReason.NO_CALL_FOUND, "a call is opened but not closed")
    try:
        return strict_loads(text[start:end]), end + len(CLOSE)
    except ValueError as e:
        problem = getattr(e, "msg", None) or str(e)
        raise Malformed(FailureReason.BAD_JSON, f"the call is not JSON: {clip(problem, 80)}") from None


def _calls(body: JSON) -> list[ToolCall]:
    entries = body if isinstance(body, list) else [body]
    if not entries:
        raise Malformed(FailureReason.NO_CALL_FOUND, "the list of calls is empty")
    return [_call(entry) for entry in entries]


def _call(entry: JSON) -> ToolCall:
    if not isinstance(entry, dict):
        raise Malformed(FailureReason.NO_ARGUMENTS, "a call must be an object with name and arguments")
    arguments = entry.get("arguments", entry.get("parameters"))
    if not isinstance(arguments, dict):
        raise Malformed(FailureReason.NO_ARGUMENTS, "arguments must be an object")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Malformed(FailureReason.NO_NAME, "the call has no name")
    return ToolCall(name=name.strip(), arguments=arguments)
