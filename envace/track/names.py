"""Metric and parameter names that MLflow accepts and its charts group well.

Flows in: names as the code uses them (`timing(s)/gen`, `mean@1`, `pass^4`, `eval/desk/success`). Flows out:
names of letters, digits, `_ - .` with exactly one slash.
Invariant: two different names never become one; the second gets a suffix made from its own text, so the
result depends on the name and what was seen before it, never on memory addresses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping

from envace.types import JSON

SPELLED = {
    "@": "_at_",
    "^": "_hat_",
    "%": "_pct",
    "+": "_plus_",
    "&": "_and_",
    "<": "_lt_",
    ">": "_gt_",
    "=": "_eq_",
}
LONGEST_NAME = 240  # MLflow's SQL store refuses more than 250
LONGEST_VALUE = 6000
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def sanitise(name: str, section: str = "run") -> str:
    """One name: illegal characters spelled out or dropped, exactly one slash.

    `eval/desk/success` -> `eval/desk.success`, `loss` -> `run/loss`, `timing(s)/gen` -> `timing_s/gen`.
    """
    parts = [_part(p) for p in str(name).split("/")]
    parts = [p for p in parts if p] or ["unnamed"]
    if len(parts) == 1:
        parts.insert(0, section)
    return _short(f"{parts[0]}/{'.'.join(parts[1:])}")


def _part(text: str) -> str:
    for char, spelled in SPELLED.items():
        text = text.replace(char, spelled)
    text = re.sub(r"[^A-Za-z0-9_.\-]+", "_", text)
    return re.sub(r"_{2,}", "_", text).strip("_")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}_{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class Namer:
    """Remembers which raw name owns which clean name, for the life of one run."""

    def __init__(self) -> None:
        self._owner: dict[str, str] = {}  # clean -> raw
        self._clean: dict[str, str] = {}  # raw -> clean

    def __call__(self, raw: str) -> str:
        """The clean name of `raw`; a collision with another raw name gives it a suffix."""
        if raw not in self._clean:
            clean = sanitise(raw)
            if self._owner.get(clean, raw) != raw:
                clean = f"{clean[: LONGEST_NAME - 9]}_{_digest(raw)}"
            self._owner[clean] = raw
            self._clean[raw] = clean
        return self._clean[raw]

    def all(self, raws: Iterable[str]) -> dict[str, str]:
        """{raw: clean} of names that come together; those that are clean already keep theirs."""
        return {raw: self(raw) for raw in sorted(raws, key=lambda raw: sanitise(raw) != raw)}


def param_name(name: str) -> str:
    """A dotted parameter name with MLflow's characters only."""
    return re.sub(r"[^A-Za-z0-9_.\-/ :]+", "_", name)[:LONGEST_NAME]


def param_value(value: JSON | Callable[..., JSON]) -> str:
    """Text that is equal for equal values in every process: functions by name, no memory addresses."""
    if callable(value) and hasattr(value, "__qualname__"):
        text = f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, Mapping):
        text = (
            "{"
            + ", ".join(f"{k}: {param_value(v)}" for k, v in sorted(value.items(), key=lambda p: str(p[0])))
            + "}"
        )
    elif isinstance(value, (list, tuple)):
        text = ",".join(param_value(v) for v in value)
    elif isinstance(value, (set, frozenset)):
        text = ",".join(sorted(param_value(v) for v in value))
    else:
        text = ADDRESS.sub("", str(value))
    return text[:LONGEST_VALUE]
