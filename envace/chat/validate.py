"""Deterministic checks of a call before anybody answers it: the allow-list, then the tool's JSON schema.

The same call and tools always give the same answer; no network, no model. Schemas may not refer to anything
outside themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from envace.chat.text import clip
from envace.chat.tool_schema import read_schema, sentence
from envace.errors import DataError
from envace.types import JSON, FailureReason, ToolCall

Refusal = tuple[FailureReason | None, str]


def validate_call(call: ToolCall, tools: Sequence[dict[str, JSON]]) -> Refusal:
    """Check name and arguments. Raises DataError when the tool's own schema is broken."""
    functions = {f["name"]: f for f in (tool.get("function", tool) for tool in tools)}
    if call.name not in functions:
        return FailureReason.UNKNOWN_TOOL, f"no tool {clip(call.name, 40)}"
    if not isinstance(call.arguments, dict):
        return FailureReason.NO_ARGUMENTS, "arguments must be an object"
    text = json.dumps(functions[call.name].get("parameters") or {"type": "object"})
    try:
        errors = read_schema(text).errors(call.arguments)
    except ValueError as e:
        raise DataError(f"tool {call.name}: the schema of its parameters {e}") from None
    if not errors:
        return None, ""
    first = min(errors, key=lambda e: ([str(p) for p in e.absolute_path], str(e.validator)))
    return FailureReason.SCHEMA_VIOLATION, sentence(first)
