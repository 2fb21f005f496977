"""Why a row is left out: the reason codes, and one fault.

Flows in: nothing. Flows out: `Reject`, `Fault`, and a way to turn msgspec's words into a fault.
Invariant: a reason code is counted in the manifest under exactly its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from envace.types import JSON


class Reject(StrEnum):
    """Why a row was left out. Counted in the manifest; docs/data.md explains each."""

    BAD_JSON = "bad_json"
    BAD_TEXT = "bad_text"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    BAD_TOOLS = "bad_tools"
    DUPLICATE_TOOL = "duplicate_tool"
    LOOSE_TOOL = "loose_tool"
    ROLE_ORDER = "role_order"
    RESULT_COUNT = "result_count"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    RESULT_NOT_JSON = "result_not_json"
    RESPONSE_TAG = "response_tag"
    BAD_THINKING = "bad_thinking"
    NO_THINKING = "no_thinking"
    EMPTY_CONTENT = "empty_content"
    PREFIX_MISMATCH = "prefix_mismatch"
    NO_CHECKLIST = "no_checklist"
    BAD_CHECKLIST = "bad_checklist"
    BAD_WEIGHTS = "bad_weights"
    BAD_RULE = "bad_rule"
    TURN_COUNT = "turn_count"
    BAD_EXTENSION = "bad_extension"
    PROMPT_TOO_LONG = "prompt_too_long"
    DUPLICATE_ID = "duplicate_id"
    DUPLICATE_CONTENT = "duplicate_content"
    NOT_SELECTED = "not_selected"


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


def shape_fault(kind: type, value: JSON, at: str, reason: Reject = Reject.WRONG_TYPE) -> Fault | None:
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
