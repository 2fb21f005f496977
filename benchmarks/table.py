"""What the benchmarks share: alternating rounds, and JSON with the versions behind the numbers.

Flows in: named entries. Flows out: what each round took.
Invariant: even rounds run forwards, odd ones backwards, so that a machine that warms up or slows down favours nobody.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def alternate(
    entries: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each round by `clock`."""
    spent: dict[str, list[float]] = {name: [] for name in entries}
    for k in range(rounds):
        for name in list(entries) if k % 2 == 0 else list(entries)[::-1]:
            began = clock()
            entries[name]()
            spent[name].append(clock() - began)
    return spent


def write_json(
    path: Path, found: Mapping[str, Any], packages: Sequence[str], about: Mapping[str, Any]
) -> None:
    """The numbers, with the versions of what made them."""
    versions = {"python": platform.python_version(), **about}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    path.write_text(json.dumps({**found, "versions": versions}, indent=2) + "\n", encoding="utf-8")
