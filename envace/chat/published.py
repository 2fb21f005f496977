"""The published code's grammars: what it reads as calls and as a rehearsed response (`grammar: published`).

Flows in: the decoded text of one generation. Flows out: the `ParsedReply` or `ParsedResult` that `calls.py`
and `contract.py` give for our own grammars; `GRAMMARS` names both pairs.
Invariant: the same text gives what the published code makes of it, but for what would break those who read it
later: characters no tokenizer takes are replaced first, values nested deeper than `MAX_DEPTH` levels and keys
that become one are no JSON, and NaN and infinities stand as their names. Time grows with the length of the
text alone.

A block stands on lines of its own: line break, tag, line break, JSON, line break, closing tag. The first
closing tag ends it, wherever it stands. `parameters` goes before `arguments`, which may be any value but
null. An empty text and an empty list of calls are replies. Of several responses the first counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from envace.chat.calls import Malformed, ParsedReply, parse_assistant
from envace.chat.contract import ParsedResult, broken, checked, parse_result
from envace.chat.text import clip, sanitise, sanitise_json, split_parts, split_thinking, tidy
from envace.types import JSON, FailureReason, ToolCall


def published_reply(text: str, *, thought_calls: Literal["ignore", "execute"] = "ignore") -> ParsedReply:
    """Read one assistant text. Never raises. Text after the first block is dropped."""
    text = sanitise(text)
    thinking, visible = split_thinking(text)
    read = text if thought_calls == "execute" else split_parts(text)[1]
    if "<tool_call>" not in read:
        return ParsedReply(thinking, visible)
    try:
        calls = _calls_in(read)
    except Malformed as e:
        return ParsedReply(thinking, visible, (), e.failure, e.detail)
    if not calls:
        return ParsedReply(thinking, visible)
    before = read[: read.index("\n<tool_call>\n")]
    if thought_calls == "execute":
        thinking, before = split_thinking(before)
    return ParsedReply(thinking, tidy(before), tuple(calls))


def published_result(text: str) -> ParsedResult:
    """Read one rehearsed response. Never raises."""
    text = _without_thoughts(sanitise(text))
    if not text.strip():
        return broken(FailureReason.EMPTY_OUTPUT, "no visible text")
    if "<execution_result>" not in text:
        return broken(FailureReason.NO_RESULT_TAG, "no <execution_result>")
    body = next(_blocks(text, "execution_result"), None)
    if body is None:
        return broken(FailureReason.RESULT_TAG_MALFORMED, "no block on lines of its own")
    try:
        value = _loads(body)
    except ValueError as e:
        return broken(FailureReason.RESULT_BAD_JSON, _problem(e))
    return checked(value)


def _calls_in(text: str) -> list[ToolCall]:
    bodies = list(_blocks(text, "tool_call"))
    if not bodies:
        raise Malformed(FailureReason.NO_CALL_FOUND, "no call on lines of its own")
    return [call for body in bodies for call in _calls(body)]


def _calls(body: str) -> list[ToolCall]:
    try:
        value = _loads(body)
    except ValueError as e:
        raise Malformed(FailureReason.BAD_JSON, f"the call is not JSON: {_problem(e)}") from None
    return [_call(entry) for entry in (value if isinstance(value, list) else [value])]


def _call(entry: JSON) -> ToolCall:
    arguments = entry.get("parameters", entry.get("arguments")) if isinstance(entry, dict) else None
    if arguments is None:
        raise Malformed(FailureReason.NO_ARGUMENTS, "the call has no arguments")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Malformed(FailureReason.NO_NAME, "the call has no name")
    return ToolCall(name=name, arguments=arguments)


def _blocks(text: str, tag: str) -> Iterator[str]:
    """The bodies of all blocks. An opening tag that nothing closes has none after it, so the search is
    linear."""
    opened, closed, at = f"\n<{tag}>\n", f"\n</{tag}>", 0
    while (start := text.find(opened, at)) >= 0:
        start += len(opened)
        if (end := text.find(closed, start)) < 0:
            return
        yield text[start:end]
        at = end + len(closed)


def _without_thoughts(text: str) -> str:
    """Without closed thoughts; one that is never closed stays."""
    parts, at = [], 0
    while (start := text.find("<think>", at)) >= 0 and (end := text.find("</think>", start)) >= 0:
        parts.append(text[at:start])
        at = end + len("</think>")
    return "".join([*parts, text[at:]])


def _loads(text: str) -> JSON:
    """Loose JSON: the last of equal keys counts. Raises ValueError."""
    try:
        return sanitise_json(json.loads(text, parse_constant=str, parse_float=_number))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _number(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else ("-Infinity" if value < 0 else "Infinity")


def _problem(e: ValueError) -> str:
    return clip(getattr(e, "msg", None) or str(e), 80)


class Grammar(NamedTuple):
    """What reads ACT's texts and what reads REHEARSE's."""

    reply: Callable[..., ParsedReply]  # (text, thought_calls=)
    result: Callable[[str], ParsedResult]


GRAMMARS: dict[str, Grammar] = {
    "strict": Grammar(parse_assistant, parse_result),
    "published": Grammar(published_reply, published_result),
}
