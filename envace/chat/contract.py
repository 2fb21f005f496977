"""The rehearsal output contract: what REHEARSE wrote -> the response of one call.

Flows in: the decoded text of one REHEARSE generation. Flows out: `ParsedResult`; or the text that obeys the
contract (`render_result`).
Invariant: a text either holds exactly one `<execution_result>` block around a non-empty JSON object or a JSON
list, or it yields no value and one named failure. Thinking and text around the block are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from envace.chat.text import clip, dumps, sanitise, split_thinking, strict_loads
from envace.types import JSON, FailureReason

OPEN, CLOSE = "<execution_result>", "</execution_result>"


@dataclass(frozen=True, slots=True)
class ParsedResult:
    value: JSON = None
    error: bool = False  # a good response that refuses the call: an object with the key "error"
    failure: FailureReason | None = None  # the contract is broken and there is no value
    detail: str = ""


def parse_result(text: str) -> ParsedResult:
    """Read one rehearsed response. Never raises."""
    visible = split_thinking(sanitise(text))[1]
    if not visible.strip():
        return ParsedResult(failure=FailureReason.EMPTY_OUTPUT, detail="no visible text")
    opened, closed = visible.count(OPEN), visible.count(CLOSE)
    if not opened:
        return ParsedResult(failure=FailureReason.NO_RESULT_TAG, detail=f"no {OPEN}")
    body = visible.partition(OPEN)[2].partition(CLOSE)[0]
    if opened > 1 or closed != 1 or visible.index(CLOSE) < visible.index(OPEN):
        detail = f"{opened} opening and {closed} closing tags"
        return ParsedResult(failure=FailureReason.RESULT_TAG_MALFORMED, detail=detail)
    try:
        value = strict_loads(body)
    except ValueError as e:
        return ParsedResult(failure=FailureReason.RESULT_BAD_JSON, detail=clip(str(e), 80))
    if not (isinstance(value, list) or (isinstance(value, dict) and value)):
        detail = "must be a non-empty object or a list"
        return ParsedResult(failure=FailureReason.RESULT_BAD_TYPE, detail=detail)
    return ParsedResult(value=value, error=is_error(value))


def is_error(value: JSON) -> bool:
    """Whether a response refuses its call: an object with the key "error"."""
    return isinstance(value, dict) and "error" in value


def render_result(value: JSON) -> str:
    """The text REHEARSE writes to give this response."""
    return f"{OPEN}\n{dumps(value)}\n{CLOSE}"
