"""Why a row is left out: the reason codes, and one fault.

Flows in: nothing. Flows out: `Reject`, `Fault`, and a way to turn msgspec's words into a fault.
Invariant: a reason code is counted in the manifest under exactly its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class Reject(StrEnum):
    """Why a row was left out. Counted in the manifest."""

    BAD_JSON = "bad_json"  # the line is not a JSON object
    BAD_TEXT = "bad_text"  # text that no UTF-8 file can hold
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    BAD_TOOLS = "bad_tools"  # no list of function schemas
    DUPLICATE_TOOL = "duplicate_tool"  # two tools of one name
    LOOSE_TOOL = "loose_tool"  # data.strict_tool_schema: a tool the published loader cannot read
    ROLE_ORDER = (
        "role_order"  # not [system,] user, then assistants and tools, ending on an assistant without calls
    )
    RESULT_COUNT = "result_count"  # an assistant's k calls are not followed by k tool messages
    UNKNOWN_TOOL = "unknown_tool"  # the reference calls a tool that is not offered
    BAD_ARGUMENTS = (
        "bad_arguments"  # of a reference call: missing, unknown or of another type than the tool says
    )
    RESULT_NOT_JSON = "result_not_json"
    RESPONSE_TAG = "response_tag"  # an assistant's text holds a tool_response tag
    BAD_THINKING = "bad_thinking"  # a think tag misplaced, left open or repeated
    NO_THINKING = "no_thinking"  # data.require_thinking: an assistant message without thoughts
    EMPTY_CONTENT = "empty_content"  # a message that says nothing and calls nothing
    PREFIX_MISMATCH = "prefix_mismatch"  # `messages` is not the start of the reference dialogue
    NO_CHECKLIST = "no_checklist"  # a raw row: nobody has annotated it yet
    BAD_CHECKLIST = "bad_checklist"
    BAD_WEIGHTS = "bad_weights"  # of a turn, not summing to 1
    BAD_RULE = "bad_rule"
    TURN_COUNT = "turn_count"  # more checklist turns than user messages
    BAD_EXTENSION = "bad_extension"  # extra_info.world or extra_info.records do not parse
    PROMPT_TOO_LONG = (
        "prompt_too_long"  # the first prompt, tools included, exceeds data.max_first_prompt_tokens
    )
    DUPLICATE_ID = "duplicate_id"  # another row of this uuid was kept
    DUPLICATE_CONTENT = "duplicate_content"  # another row has the same dialogue and tools
    NOT_SELECTED = "not_selected"  # a good row that data.select thins out


@dataclass(frozen=True, slots=True)
class Fault:
    """`Fault(Reject.BAD_WEIGHTS, "extra_info...[0][1]", "weights sum to 0.8, not 1")`."""

    reason: Reject
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message} [{self.reason}]"


NAMES = {
    "str": "text",
    "array": "a list",
    "object": "an object",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "null": "nothing",
}
_EXPECTED = re.compile(r"Expected `(.+?)`, got `(.+?)`")
_MISSING = re.compile(r"missing required field `(.+?)`")
_PATH = re.compile(r" - at `\$(.*?)`\Z")


def shape_fault(kind: Any, value: Any, at: str, reason: Reject = Reject.WRONG_TYPE) -> Fault | None:
    """The first place where plain data does not have the shape of a type, or None."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as e:
        return _worded(str(e), at, reason)
    except RecursionError:
        return Fault(reason, at, "is nested too deep")
    return None


def _worded(text: str, at: str, reason: Reject) -> Fault:
    path = _PATH.search(text)
    spot = at + (path[1].replace("[...]", "[*]") if path else "")
    absent = Reject.MISSING_FIELD if reason is Reject.WRONG_TYPE else reason
    if missing := _MISSING.search(text):
        return Fault(absent, f"{spot}.{missing[1]}", "is missing")
    if not (expected := _EXPECTED.search(text)):
        return Fault(reason, spot, text[: path.start()] if path else text)
    wanted, got = expected.groups()
    if got == "null":
        return Fault(absent, spot, "is missing")
    kinds = [NAMES.get(k, k) for k in wanted.split(" | ") if k != "null"]
    return Fault(reason, spot, f"must be {' or '.join(kinds)}, not {NAMES.get(got, got)}")
