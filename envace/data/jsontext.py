"""JSON text, read strictly.

Invariant: NaN, infinity, numbers out of range, half surrogate pairs and repeated keys are not JSON; what
passes is equal to what `json.loads` gives."""

from __future__ import annotations

import json

import msgspec

from envace.chat.text import STRICT
from envace.types import JSON


def read(text: str | bytes) -> JSON:
    """The value of a JSON text. Raises ValueError saying what is wrong with it."""
    value = read_line(text)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair stands alone") from None
    return value


def read_or_take(value: JSON) -> JSON:
    """The value of a JSON text, or the value itself when it is no text. Raises ValueError."""
    return read(value) if isinstance(value, str) else value


def read_line(text: str | bytes) -> JSON:
    """The value of a line of a file. Half a surrogate pair passes, so that the row's own check can name it.

    Raises ValueError saying what is wrong and where.
    """
    try:
        return STRICT.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("nested too deep") from None


def write(value: JSON) -> str:
    """Compact JSON text. Raises TypeError, ValueError or UnicodeEncodeError on what is not plain JSON
    data."""
    return msgspec.json.encode(value).decode()


def without_nulls(value: JSON) -> JSON:
    """Plain data without the keys whose value is null: in parquet an absent key reads so."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value
