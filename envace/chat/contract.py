"""The rehearsal output contract (`grammar: strict`): what REHEARSE wrote -> the response of one call.

Flows in: the decoded text of one REHEARSE generation. Flows out: `ParsedResult`; or the text that obeys the
contract (`render_result`).
Invariant: a text either holds exactly one `<execution_result>` block around a non-empty JSON object or a JSON
list, or it yields no value and one named failure. Thinking and text around the block are ignored; tags inside
JSON strings are text. docs/tool-calls.md shows every case.
"""

from __future__ import annotations

from dataclasses import dataclass

from envace.chat.text import body_end, clip, dumps, sanitise, split_parts, strict_loads, tidy
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


def parse_result(text: str) -> ParsedResult:
    """Read one rehearsed response. Never raises."""
    visible = split_parts(sanitise(text))[1]
    if not tidy(visible):
        return broken(FailureReason.EMPTY_OUTPUT, "no visible text")
    if OPEN not in visible:
        return broken(FailureReason.NO_RESULT_TAG, f"no {OPEN}")
    body, opened, closed = _body(visible)
    if body is None:
        return broken(FailureReason.RESULT_TAG_MALFORMED, f"{opened} opening and {closed} closing tags")
    try:
        value = strict_loads(body)
    except ValueError as e:
        return broken(FailureReason.RESULT_BAD_JSON, clip(getattr(e, "msg", None) or str(e), 80))
    return checked(value)


def checked(value: JSON) -> ParsedResult:
    """A response that was read; broken when it is of a type no tool answers with."""
    if not (isinstance(value, list) or (isinstance(value, dict) and value)):
        return broken(FailureReason.RESULT_BAD_TYPE, "must be a non-empty object or a list")
    return ParsedResult(value=value, error=is_error(value))


def broken(failure: FailureReason, detail: str) -> ParsedResult:
    """No response, and why."""
    return ParsedResult(failure=failure, detail=detail)


def _body(visible: str) -> tuple[str | None, int, int]:
    """The text between the tags (None unless there is one of each, in order), opening and closing tags."""
    before, _, rest = visible.partition(OPEN)
    end = body_end(rest, 0)
    quoted = rest[:end] if rest.startswith(CLOSE, end) else ""  # tags in it stand inside JSON strings
    opened, closed = (visible.count(tag) - quoted.count(tag) for tag in (OPEN, CLOSE))
    if (opened, closed) != (1, 1) or CLOSE in before:
        return None, opened, closed
    return quoted or rest.partition(CLOSE)[0], 1, 1


def is_error(value: JSON) -> bool:
    """Whether a response refuses its call: an object with the key "error"."""
    return isinstance(value, dict) and "error" in value


def render_result(value: JSON) -> str:
    """The text REHEARSE writes to give this response."""
    return f"{OPEN}\n{dumps(value)}\n{CLOSE}"
