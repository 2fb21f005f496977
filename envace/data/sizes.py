"""How large a row is, and how large rows are.

Flows in: stored rows. Flows out: a `RowSize` each, and histograms over many for the manifest and a data set's
card. Invariant: a histogram's counts add up to what was counted, each value in the bin whose edges hold it,
the last bin open; two runs over the same rows give the same histograms, whatever the order."""

from __future__ import annotations

import bisect

import msgspec

from envace.data.row_forms import Row
from envace.types import JSON

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


class RowSize(msgspec.Struct, array_like=True):
    """`RowSize(turns=2, steps=5, most_steps=3, calls=3, tools=6, tools_used=2, tokens=812, items=4,
    weights=[...])`."""

    turns: int
    """User messages."""
    steps: int
    """Assistant messages."""
    most_steps: int
    """Of one turn."""
    calls: int
    tools: int
    """Offered."""
    tools_used: int
    """Of those, called."""
    tokens: int
    """Of the first prompt, tools included."""
    items: int
    weights: list[float]
    tags: list[str] = []


def size_of(row: Row, tools: int, tokens: int) -> RowSize:
    """The size of a stored row that offers so many tools and whose first prompt has so many tokens."""
    extra = row["extra_info"]
    steps = [0]  # of each turn, the first one before any user message
    called: list[str] = []
    for m in extra["messages"]:
        if m["role"] == "user":
            steps.append(0)
        elif m["role"] == "assistant":
            steps[-1] += 1
            called += [c["function"]["name"] for c in m["tool_calls"]]
    weights = [i["weight"] for items in extra["interaction_kwargs"]["checklist_list"][0] for i in items]
    return RowSize(
        turns=len(steps) - 1,
        steps=sum(steps),
        most_steps=max(steps),
        calls=len(called),
        tools=tools,
        tools_used=len(set(called)),
        tokens=tokens,
        items=len(weights),
        weights=weights,
        tags=extra["tags"],
    )


class Histograms:
    """Counts a bin, for every kind of number."""

    def __init__(self) -> None:
        self._counts = {name: [0] * len(edges) for name, edges in EDGES.items()}

    def add(self, size: RowSize) -> None:
        for name, edges in EDGES.items():
            value = getattr(size, name)
            for number in value if isinstance(value, list) else (value,):
                self._counts[name][max(bisect.bisect_right(edges, number) - 1, 0)] += 1

    def as_dict(self) -> dict[str, JSON]:
        """`{"turns": {"edges": [1, 2, ...], "counts": [40, 12, ...]}, ...}`; the last bin is open."""
        return {name: {"edges": list(EDGES[name]), "counts": counts} for name, counts in self._counts.items()}
