"""Plain data -> typed records, with one sentence for what does not fit.

Flows in: what YAML made of a file, and a dataclass. Flows out: the record, every value typed and inside its range.
Invariant: an unknown, misspelt, mistyped or out-of-range value raises `ParamsError` naming the key, the value and, for
a key, the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from typing import Annotated, Any, Literal

from envace.config.ranges import MAY_BE_EMPTY
from envace.errors import ParamsError

NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z"
)  # YAML reads 1e-6 as a string; users mean a number


def record(cls: type, data: Any, prefix: str, where: str) -> Any:
    if not isinstance(data, dict):
        raise ParamsError(f"{where}: {prefix[:-1]} must be a mapping, not {kind(data)}")
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [f.name for f in dataclasses.fields(cls)]
    for key in data:
        if key not in names:
            raise ParamsError(
                f"{where}: unknown key {prefix}{key} (value {data[key]!r}){nearest(str(key), names, prefix)}"
            )
    return cls(**{k: _value(hints[k], v, f"{prefix}{k}", where) for k, v in data.items()})


def _value(hint: Any, value: Any, key: str, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return record(hint, value, key + ".", where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if args[1] is MAY_BE_EMPTY and value == []:
            return ()
        value = _value(args[0], value, key, where)
        if args[1] is MAY_BE_EMPTY:
            return value
        low, high = args[1].low, args[1].high
        if not low <= value <= high:
            bound = f"at least {low:g}" if value < low else f"at most {high:g}"
            raise ParamsError(f"{where}: {key} is {value!r}, must be {bound}")
        return value
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            raise ParamsError(
                f"{where}: {key} is {value!r}, must be one of {', '.join(map(str, args))}{nearest(str(value), [str(a) for a in args])}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or not value:
            raise ParamsError(f"{where}: {key} is {value!r}, must be a non-empty list")
        items = tuple(_value(args[0], v, f"{key}[{i}]", where) for i, v in enumerate(value))
        if len(set(items)) < len(items):
            raise ParamsError(f"{where}: {key} is {list(items)!r}, must not repeat a value")
        return items
    if origin is dict:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ParamsError(f"{where}: {key} must be a mapping, not {kind(value)}")
        if args[1] is Any:
            return dict(value)
        for k in value:
            _scalar(args[0], k, f"a name in {key}", where)
        return {k: _value(args[1], v, f"{key}.{k}", where) for k, v in value.items()}
    return _scalar(hint, value, key, where)


def _scalar(hint: type, value: Any, key: str, where: str) -> Any:
    if hint is float and isinstance(value, str) and NUMBER.match(value):
        value = float(value)
    if (
        hint is int
        and isinstance(value, str)
        and NUMBER.match(value)
        and float(value).is_integer()
        and "e" in value.lower()
    ):
        value = int(float(value))
    good = {
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
        str: isinstance(value, str),
    }[hint]
    if not good:
        name = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[hint]
        raise ParamsError(f"{where}: {key} is {value!r} ({kind(value)}), must be {name}")
    return float(value) if hint is float else value


def kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return {
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }.get(type(value), type(value).__name__)


def nearest(name: str, known: list[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return (
        f"; did you mean {prefix}{near[0]}?"
        if near
        else f"; valid here: {', '.join(prefix + k for k in known)}"
    )
