"""Deterministic checks of a call before anybody answers it: the allow-list, then the tool's JSON schema.

The same call and tools always give the same answer; no network, no model. Schemas may not refer to anything
outside themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from envace.chat.text import clip
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
    schema = functions[call.name].get("parameters") or {"type": "object"}
    validator = _validator(json.dumps(schema), call.name)
    try:
        errors = list(validator.iter_errors(call.arguments))
    except Unresolvable as e:
        raise DataError(f"tool {call.name}: its schema refers to {e.ref!r}, which it does not hold") from None
    if not errors:
        return None, ""
    first = min(errors, key=lambda e: ([str(p) for p in e.absolute_path], str(e.validator)))
    return FailureReason.SCHEMA_VIOLATION, _sentence(first)


@lru_cache(maxsize=4096)
def _validator(schema: str, name: str) -> Draft202012Validator:
    try:
        Draft202012Validator.check_schema(json.loads(schema))
    except SchemaError as e:
        raise DataError(f"tool {name}: its parameters are not a JSON schema ({clip(e.message)})") from None
    # An empty registry: a $ref to the outside must fail, never be fetched.
    return Draft202012Validator(json.loads(schema), registry=Registry())


def _sentence(error: ValidationError) -> str:
    """Short on purpose: the sentence stands in a small policy's context."""
    at = ".".join(str(p) for p in error.absolute_path) or "arguments"
    if error.validator == "required":
        missing = [k for k in error.validator_value if k not in error.instance]
        return clip(f"missing {', '.join(missing)}" + ("" if at == "arguments" else f" in {at}"))
    if error.validator == "additionalProperties" and error.validator_value is False:
        extra = [k for k in error.instance if k not in error.schema.get("properties", {})]
        return clip(f"unknown argument {', '.join(extra)}")
    if error.validator == "type":
        wanted = error.validator_value
        return clip(f"{at} must be {wanted if isinstance(wanted, str) else ' or '.join(wanted)}")
    if error.validator == "enum":
        return clip(f"{at} must be one of {', '.join(map(str, error.validator_value))}")
    if error.validator == "pattern":
        return clip(f"{at} has the wrong format")
    return clip(f"{at}: {error.message}")
