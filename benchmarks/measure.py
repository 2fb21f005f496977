"""What the comparisons share: alternating rounds, a table of medians, and JSON with the versions behind the
numbers."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("verl", "torch", "transformers", "tokenizers", "numpy")
FOLDER = Path(".state/benchmarks")


def alternate(entries: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds of each round. Odd rounds run backwards: a machine that warms up favours nobody."""
    spent: dict[str, list[float]] = {name: [] for name in entries}
    for k in range(rounds):
        for name in list(entries)[:: 1 if k % 2 == 0 else -1]:
            began = time.process_time()
            entries[name]()
            spent[name].append(1e3 * (time.process_time() - began))
    return spent


def report(name: str, what: str, spent: Mapping[str, list[float]], ours: str, unit: str) -> dict[str, float]:
    """Prints medians, appends them to `.state/benchmarks/<name>.json`; returns each as a multiple of ours."""
    median = {entry: statistics.median(values) for entry, values in spent.items()}
    times = {entry: value / median[ours] for entry, value in median.items() if entry != ours}
    print(f"\n{name}: {what}")
    for entry, values in spent.items():
        low, high = min(values), max(values)
        print(
            f"  {entry:26} {median[entry]:10.2f} {unit} [{low:.2f}, {high:.2f}]  {times.get(entry, 1):8.2f}x "
            "ours"
        )
    versions = {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}
    FOLDER.mkdir(parents=True, exist_ok=True)
    record = {
        "what": what,
        "unit": unit,
        "rounds": spent,
        "median": median,
        "times": times,
        "versions": versions,
    }
    with (FOLDER / f"{name}.jsonl").open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record) + "\n")
    return times
