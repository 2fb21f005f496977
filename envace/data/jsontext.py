"""JSON text, read strictly and fast.

Flows in: the text of one JSON value. Flows out: the value, or ValueError.
Invariant: NaN, infinity, numbers out of range, half surrogate pairs and repeated keys are not JSON; what passes
is equal to what `json.loads` gives.
"""

from __future__ import annotations

import json
import math
from typing import Any

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
        raise ValueError(_why_not(text)) from None
    if repeats:
        _slowly(text)
    return value


def _why_not(text: str | bytes) -> str:
    try:
        _slowly(text)
    except ValueError as e:
        return str(e)
    return "half of a surrogate pair stands alone"


def _slowly(text: str | bytes) -> JSON:
    """As strict but for half surrogate pairs; its errors name the place."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _may_repeat_a_key(value: JSON, text: str | bytes) -> bool:
    """A repeated key is gone from the value, and its quotes with it: written again, the value has fewer."""
    quote, escaped = ('"', "\\u0022") if isinstance(text, str) else (b'"', b"\\u0022")
    return text.count(quote) != _encode(value).count(b'"') or escaped in text


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object repeats a key")
    return value


def read_or_take(value: Any) -> Any:
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
    return _slowly(line)


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"{digits[:20]} is out of range")
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def write(value: JSON) -> str:
    """Compact JSON text. Raises TypeError, ValueError or UnicodeEncodeError on what is not plain JSON data."""
    return _encode(value).decode()
