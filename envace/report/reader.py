"""Reads files below one folder and remembers what was absent or broken.

Flows in: a folder and names of files. Flows out: plain data, or records.
Invariant: an absent or broken file is remembered and never raises.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envace.types import JSON, from_json


class Reader:
    """Reads below one folder and remembers what was absent or broken."""

    def __init__(self, root: Path):
        self.root = root
        self.missing: list[str] = []
        self.problems: list[str] = []

    def json(self, name: str) -> dict[str, JSON]:
        """A JSON object; {} when absent or broken."""
        text = self._text(name)
        if text is None:
            return {}
        try:
            data = json.loads(text)
        except ValueError as e:
            self.problems.append(f"{name}: not JSON ({e})")
            return {}
        if not isinstance(data, dict):
            self.problems.append(f"{name}: holds no object")
            return {}
        return data

    def lines(self, name: str) -> Iterator[dict[str, JSON]]:
        """The objects of a JSON-lines file, one at a time; broken lines are counted as one problem."""
        path, bad = self.root / name, 0
        if not path.is_file():
            self.missing.append(name)
            return
        try:
            with path.open(encoding="utf-8", errors="replace") as f:
                for line in filter(str.strip, f):
                    try:
                        data = json.loads(line)
                    except ValueError:
                        data = None
                    if isinstance(data, dict):
                        yield data
                    else:
                        bad += 1
        except OSError as e:
            self.problems.append(f"{name}: {e.strerror}")
        if bad:
            self.problems.append(f"{name}: {bad} broken lines left out")

    def records(self, name: str, cls: type, items: Any) -> tuple:
        """Those of `items` that fit the record type; the others are counted as one problem."""
        good, bad, why = [], 0, ""
        for item in items:
            try:
                good.append(from_json(cls, item))
            except ValueError as e:  # pydantic.ValidationError
                bad, why = bad + 1, why or str(e).splitlines()[1:2]
        if bad:
            self.problems.append(f"{name}: {bad} entries are no {cls.__name__} {' '.join(why)}".rstrip())
        return tuple(good)

    def _text(self, name: str) -> str | None:
        path = self.root / name
        if not path.is_file():
            self.missing.append(name)
            return None
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as e:
            self.problems.append(f"{name}: {e.strerror}")
            return None


def number(value: Any) -> float | None:
    """A finite number as float, anything else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def objects(data: dict[str, JSON], key: str) -> list[dict[str, JSON]]:
    """The objects of a list inside a line; [] when there is none."""
    items = data.get(key)
    return [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []
