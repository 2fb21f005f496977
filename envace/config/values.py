"""Types of values in params.yaml, and one sentence for a value that does not fit.

Both ends of a range are allowed. YAML 1.1 reads 1e-6 as text, so numbers may be written as text with a digit.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    StrictBool,
    ValidationError,
)

from envace.errors import ParamsError

CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
T = TypeVar("T")


def _number(value: T) -> T | float:
    return float(value) if isinstance(value, str) and NUMBER.match(value) else value


def _whole(value: T) -> T | int:
    number = _number(value) if isinstance(value, str) and "e" in value.lower() else value
    return int(number) if isinstance(number, float) and number.is_integer() else value


def _each_once(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError("must not repeat a value")
    return values


Flag = StrictBool
Whole = Annotated[int, Strict(), BeforeValidator(_whole)]
Real = Annotated[float, Strict(), BeforeValidator(_number), Field(allow_inf_nan=False)]
Count = Annotated[Whole, Field(ge=1)]
CountOrZero = Annotated[Whole, Field(ge=0)]
Share = Annotated[Real, Field(ge=0.0, le=1.0)]
Positive = Annotated[Real, Field(ge=1e-12)]
NotNegative = Annotated[Real, Field(ge=0.0)]
Temperature = Annotated[Real, Field(ge=0.0, le=5.0)]
TopP = Annotated[Real, Field(ge=1e-6, le=1.0)]
Port = Annotated[Whole, Field(ge=1024, le=65535)]
Listed = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_each_once)]
MaybeListed = Annotated[tuple[T, ...], AfterValidator(_each_once)]
Table = Annotated[dict[str, T], BeforeValidator(lambda value: {} if value is None else value)]
Free = Table[JsonValue]
Benchmark = Literal["desk", "desk-validation", "desk-unseen", "files"]
"""Played in this process."""
Harness = Literal["bfcl", "tau2", "vita", "finmcp"]
"""Upstream's own program."""
Curve = Literal["desk", "desk-validation", "desk-unseen", "files", "bfcl", "tau2", "vita", "finmcp"]

_WANTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a finite number",
    "finite": "a finite number",
    "string": "text",
    "tuple": "a non-empty list",
    "too": "a non-empty list",
    "pair": "two numbers for act and rehearse",
}
_KINDS = {
    bool: "true/false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


def kind(value: object) -> str:
    return "nothing" if value is None else _KINDS.get(type(value), type(value).__name__)


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean X?`, or the whole list where nothing is near."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; valid here: {', '.join(prefix + k for k in known)}"


def refusal(error: ValidationError, record: type) -> ParamsError:
    """The first thing that does not fit `record`, as one sentence naming the key, the value and what is
    allowed."""
    first = error.errors()[0]
    path, value, said = first["loc"], first["input"], first["type"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if said == "unexpected_keyword_argument":
        known = [f.name for f in dataclasses.fields(_inside(record, path[:-1]))]
        prefix = key.rpartition(".")[0] + "." if "." in key else ""
        return ParamsError(f"unknown key {key} (value {value!r}){nearest(str(path[-1]), known, prefix)}")
    if said in ("dataclass_type", "dict_type"):
        return ParamsError(f"{key} must be a mapping, not {kind(value)}")
    context = first.get("ctx", {})
    if "ge" in context or "le" in context:
        bound = f"at least {context['ge']:g}" if "ge" in context else f"at most {context['le']:g}"
        return ParamsError(f"{key} is {value!r}, must be {bound}")
    if said == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        return ParamsError(
            f"{key} is {value!r}, must be one of {', '.join(allowed)}{nearest(str(value), allowed)}"
        )
    if said == "value_error":
        return ParamsError(f"{key} is {value!r}, {context['error']}")
    if said == "missing":  # an item of a fixed-length list; its input is the list
        key, said = key.rpartition("[")[0], "pair"
    wanted = _WANTED.get(said.split("_")[0], first["msg"])
    return ParamsError(f"{key} is {value!r} ({kind(value)}), must be {wanted}")


def _inside(record: type, path: tuple[str | int, ...]) -> type:
    """The section that a path of keys leads to."""
    here = record
    for part in path:
        here = (
            typing.get_type_hints(here)[str(part)]
            if dataclasses.is_dataclass(here)
            else typing.get_args(here)[1]
        )
    return here
