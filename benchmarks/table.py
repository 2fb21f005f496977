"""What the benchmarks share: alternating rounds, ratios, and JSON with the versions behind the numbers.

Flows in: named entries. Flows out: what each round took, and what each entry takes as a multiple of ours.
Invariant: even rounds run forwards, odd ones backwards, so that a machine that warms up or slows down favours nobody.
"""

from __future__ import annotations

import json
import platform
import statistics
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


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return low, high


def times(median: Mapping[str, float], ours: str) -> dict[str, float]:
    """How many times as much each other entry takes as ours."""
    return {
        name: value / median[ours] if median[ours] else float("inf")
        for name, value in median.items()
        if name != ours
    }


def write_json(
    path: Path, found: Mapping[str, Any], packages: Sequence[str], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The numbers, with the versions of what made them, which are returned."""
    versions = {"python": platform.python_version(), "machine": platform.machine(), **about}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    path.write_text(json.dumps({**found, "versions": versions}, indent=2) + "\n", encoding="utf-8")
    return versions
