"""JSON text, read strictly and fast.

Invariant: NaN, infinity, numbers out of range, half surrogate pairs and repeated keys are not JSON; what
passes is equal to what `json.loads` gives."""

from __future__ import annotations

import json
import math

import msgspec

from envace.types import JSON

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read(text: str | bytes) -> JSON:
    """The value of a JSON text. Raises ValueError saying what is wrong with it."""
    try:
        value = _decode(text)
        repeats = _may_repeat_a_key(value, text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        _read_slowly(text)
        raise ValueError("half of a surrogate pair stands alone") from None
    if repeats:
        _read_slowly(text)
    return value


def read_or_take(value: JSON) -> JSON:
    """The value of a JSON text, or the value itself when it is no text. Raises ValueError."""
    return read(value) if isinstance(value, str) else value


def read_line(line: bytes) -> JSON:
    """The value of a line of a file. Half a surrogate pair passes, so that the row's own check can name it.

    Raises ValueError saying what is wrong and where.
    """
    try:
        return read(line)
    except ValueError:
        if b"\\ud" not in line.lower():
            raise
    return _read_slowly(line)


def write(value: JSON) -> str:
    """Compact JSON text. Raises TypeError, ValueError or UnicodeEncodeError on what is not plain JSON
    data."""
    return _encode(value).decode()


def without_nulls(value: JSON) -> JSON:
    """Plain data without the keys whose value is null: in parquet an absent key reads so."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def _may_repeat_a_key(value: JSON, text: str | bytes) -> bool:
    """A repeated key is gone from the value, and its quotes with it: written again, the value has fewer."""
    quote, escaped = ('"', "\\u0022") if isinstance(text, str) else (b'"', b"\\u0022")
    return text.count(quote) != _encode(value).count(b'"') or escaped in text


def _read_slowly(text: str | bytes) -> JSON:
    """As strict but for half surrogate pairs; its errors name the place."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    def finite(digits: str) -> float:
        if math.isinf(value := float(digits)):
            raise ValueError(f"{digits[:20]} is out of range")
        return value

    def no_duplicates(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
        value = dict(pairs)
        if len(value) < len(pairs):
            raise ValueError("an object repeats a key")
        return value

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite, object_pairs_hook=no_duplicates)
    except RecursionError:
        raise ValueError("nested too deep") from None
