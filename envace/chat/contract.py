"""What REHEARSE wrote -> the response of one call, in both grammars (docs/tool-calls.md shows every case).

strict      exactly one `<execution_result>` block around a non-empty JSON object or a JSON list, or no value
            and one named failure. Thinking and text around the block are ignored; tags inside JSON strings
            are text.
published   what the published code reads: the first block on lines of its own counts, with the exceptions
            that `calls` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from envace.chat.calls import ParsedReply, parse_assistant, published_reply
from envace.chat.text import (
    blocks_on_lines,
    body_end,
    dumps,
    json_problem,
    loose_loads,
    sanitise,
    split_parts,
    strict_loads,
    tidy,
)
from envace.types import JSON, FailureReason

OPEN, CLOSE = "<execution_result>", "</execution_result>"


@dataclass(frozen=True, slots=True)
class ParsedResult:
    """One rehearsed response."""

    value: JSON = None
    error: bool = False
    """A good response that refuses the call: an object with the key "error"."""
    failure: FailureReason | None = None
    """The contract is broken and there is no value."""
    detail: str = ""


def is_error(value: JSON) -> bool:
    """Whether a response refuses its call: an object with the key "error"."""
    return isinstance(value, dict) and "error" in value


def render_result(value: JSON) -> str:
    """The text REHEARSE writes to give this response."""
    return f"{OPEN}\n{dumps(value)}\n{CLOSE}"


def parse_result(text: str) -> ParsedResult:
    """Read one rehearsed response strictly. Never raises."""
    visible = split_parts(sanitise(text))[1]
    before, _, rest = visible.partition(OPEN)
    end = body_end(rest, 0)
    quoted = rest[:end] if rest.startswith(CLOSE, end) else ""  # tags in it stand inside JSON strings
    opened, closed = (visible.count(tag) - quoted.count(tag) for tag in (OPEN, CLOSE))
    whole = (opened, closed) == (1, 1) and CLOSE not in before
    body = (quoted or rest.partition(CLOSE)[0]) if whole else None
    return _read(tidy(visible), body, strict_loads, f"{opened} opening and {closed} closing tags")


def published_result(text: str) -> ParsedResult:
    """Read one rehearsed response as the published code does. Never raises."""
    *closed, rest = sanitise(text).split("</think>")  # a thought that is never closed stays
    kept = (p.partition("<think>")[0] if "<think>" in p else f"{p}</think>" for p in closed)
    text = "".join([*kept, rest])
    body = next(blocks_on_lines(text, "execution_result"), None)
    return _read(text.strip(), body, loose_loads, "no block on lines of its own")


def _read(visible: str, body: str | None, loads: Callable[[str], JSON], no_body: str) -> ParsedResult:
    """The response in a block's body, or what is wrong with the text, with the reason where there is none."""
    if not visible:
        return ParsedResult(failure=FailureReason.EMPTY_OUTPUT, detail="no visible text")
    if OPEN not in visible:
        return ParsedResult(failure=FailureReason.NO_RESULT_TAG, detail=f"no {OPEN}")
    if body is None:
        return ParsedResult(failure=FailureReason.RESULT_TAG_MALFORMED, detail=no_body)
    try:
        value = loads(body)
    except ValueError as e:
        return ParsedResult(failure=FailureReason.RESULT_BAD_JSON, detail=json_problem(e))
    if not (isinstance(value, list) or (isinstance(value, dict) and value)):
        detail = "must be a non-empty object or a list"
        return ParsedResult(failure=FailureReason.RESULT_BAD_TYPE, detail=detail)
    return ParsedResult(value=value, error=is_error(value))


class Grammar(NamedTuple):
    """What reads ACT's texts and what reads REHEARSE's."""

    reply: Callable[..., ParsedReply]  # (text, thought_calls=)
    result: Callable[[str], ParsedResult]


GRAMMARS: dict[str, Grammar] = {
    "strict": Grammar(parse_assistant, parse_result),
    "published": Grammar(published_reply, published_result),
}
