"""How large a row is, and how large rows are.

Flows in: stored rows. Flows out: a `Size` each, and histograms over many for the manifest and a data set's card.
Invariant: a histogram's counts add up to what was counted, each value in the bin whose edges hold it, the last bin
open; two runs over the same rows give the same histograms, whatever the order.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from envace.data.forms import Row

# kind of number -> lower edges of its bins; the last bin has no upper edge
EDGES: dict[str, tuple[float, ...]] = {
    "turns": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20),
    "steps": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30),
    "calls": (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30),
    "tools": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50),
    "tokens": (0, 250, 500, 750, 1000, 1500, 2000, 2500, 3000, 3500, 5000, 10000),
    "items": (0, 1, 2, 4, 6, 8, 10, 12, 16, 20, 30, 50),
    "weights": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
}


class Size(msgspec.Struct, array_like=True):
    """`Size(turns=2, steps=5, most_steps=3, calls=3, tools=6, tools_used=2, tokens=812, items=4, weights=[...])`."""

    turns: int  # user messages
    steps: int  # assistant messages
    most_steps: int  # of one turn
    calls: int
    tools: int  # offered
    tools_used: int  # of those, called
    tokens: int  # of the first prompt, tools included
    items: int
    weights: list[float]
    tags: list[str] = []


def size_of(row: Row, tools: int, tokens: int) -> Size:
    """The size of a stored row that offers so many tools and whose first prompt has so many tokens."""
    extra = row["extra_info"]
    steps = [0]  # a turn
    called: list[str] = []
    for m in extra["messages"]:
        if m["role"] == "user":
            steps.append(0)
        elif m["role"] == "assistant":
            steps[-1] += 1
            called += [c["function"]["name"] for c in m["tool_calls"]]
    weights = [i["weight"] for items in extra["interaction_kwargs"]["checklist_list"][0] for i in items]
    return Size(
        turns=len(steps) - 1, steps=sum(steps), most_steps=max(steps), calls=len(called), tools=tools,
        tools_used=len(set(called)), tokens=tokens, items=len(weights), weights=weights, tags=extra["tags"],
    )  # fmt: skip


def _empty() -> dict[str, list[int]]:
    return {name: [0] * len(edges) for name, edges in EDGES.items()}


@dataclass(slots=True)
class Histograms:
    """Counts a bin, for every kind of number."""

    counts: dict[str, list[int]] = field(default_factory=_empty)

    def add(self, size: Size) -> None:
        for name, edges in EDGES.items():
            value = getattr(size, name)
            for number in value if isinstance(value, list) else (value,):
                self.counts[name][max(bisect.bisect_right(edges, number) - 1, 0)] += 1

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """`{"turns": {"edges": [1, 2, ...], "counts": [40, 12, ...]}, ...}`; the last bin is open."""
        return {name: {"edges": list(EDGES[name]), "counts": counts} for name, counts in self.counts.items()}


def histograms(sizes: Iterable[Size]) -> Histograms:
    """The histograms of many sizes."""
    found = Histograms()
    for size in sizes:
        found.add(size)
    return found
