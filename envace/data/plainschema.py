"""A quick yes for the JSON schemas that tools really have.

Flows in: a schema as plain data. Flows out: True when it uses common keywords in their common shapes only.
Invariant: True means that jsonschema's own check of a schema passes too; False says nothing. The own check takes a
thousand times longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KINDS = frozenset(("string", "integer", "number", "boolean", "array", "object", "null"))
MAX_DEPTH = 32


def is_plain(schema: Any, depth: int = 0) -> bool:
    """Whether a schema is plainly a JSON schema."""
    if isinstance(schema, bool):
        return depth > 0
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return False
    for key, value in schema.items():
        check = KEYWORDS.get(key)
        if check is None or not check(value, depth):
            return False
    return True


def _kind(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return value in KINDS
    return _names(value, depth) and bool(value) and KINDS.issuperset(value)


def _names(value: Any, depth: int) -> bool:
    return (
        isinstance(value, list) and all(isinstance(v, str) for v in value) and len(set(value)) == len(value)
    )


def _text(value: Any, depth: int) -> bool:
    return isinstance(value, str)


def _number(value: Any, depth: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any, depth: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(value: Any, depth: int) -> bool:
    return isinstance(value, bool)


def _list(value: Any, depth: int) -> bool:
    return isinstance(value, list)


def _anything(value: Any, depth: int) -> bool:
    return True


def _part(value: Any, depth: int) -> bool:
    return is_plain(value, depth + 1)


def _parts(value: Any, depth: int) -> bool:
    return isinstance(value, dict) and all(is_plain(v, depth + 1) for v in value.values())


def _choices(value: Any, depth: int) -> bool:
    return isinstance(value, list) and bool(value) and all(is_plain(v, depth + 1) for v in value)


KEYWORDS: dict[str, Callable[[Any, int], bool]] = {
    "type": _kind, "properties": _parts, "required": _names, "items": _part, "additionalProperties": _part,
    "title": _text, "description": _text, "format": _text, "enum": _list, "const": _anything, "default": _anything,
    "examples": _list, "minimum": _number, "maximum": _number, "exclusiveMinimum": _number,
    "exclusiveMaximum": _number, "minLength": _count, "maxLength": _count, "minItems": _count, "maxItems": _count,
    "uniqueItems": _flag, "nullable": _anything, "optional": _anything, "anyOf": _choices, "oneOf": _choices,
    "allOf": _choices,
}  # fmt: skip
