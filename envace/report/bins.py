"""A histogram as people read it: bins by name, empty ends cut off.

Flows in: edges and counts. Flows out: labels, ticks, and the least, middle and largest bin.
Invariant: a bin's name says exactly which numbers fall into it; whole numbers are named `3`, `6–7` or `20+`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

LONGEST = 5  # letters of a label that can stand below its bar


@dataclass(frozen=True, slots=True)
class Bins:
    """`Bins((1, 2, 5), (40, 12, 0))`: 40 ones, 12 from 2 to 4, none of 5 or more."""

    edges: tuple[float, ...]  # lower ones, increasing; the last bin is open
    counts: tuple[int, ...]  # [len(edges)]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def first(self) -> int:
        """The first bin that holds something."""
        return next(k for k, n in enumerate(self.counts) if n)

    @property
    def last(self) -> int:
        return next(k for k in reversed(range(len(self.counts))) if self.counts[k])

    @property
    def median(self) -> int:
        """The bin of the middle number, of the lower one of two."""
        return next(k for k, n in enumerate(accumulate(self.counts)) if 2 * n >= self.total)

    def label(self, k: int) -> str:
        """The name of a bin."""
        low = self.edges[k]
        if k == len(self.edges) - 1:
            return f"{low:g}+"
        high = self.edges[k + 1]
        if not self._whole:
            return f"{low:g}–{high:g}"
        return f"{low:g}" if high == low + 1 else f"{low:g}–{high - 1:g}"

    @property
    def shown(self) -> list[tuple[str, int]]:
        """(name, count) from the first bin that holds something to the last."""
        return [(self.label(k), self.counts[k]) for k in range(self.first, self.last + 1)]

    @property
    def ticks(self) -> list[str]:
        """The edges of the shown bins, where names are too long to stand below bars."""
        if self._whole and all(len(name) <= LONGEST for name, _ in self.shown):
            return []
        return [_short(e) for e in self.edges[self.first : self.last + 2]]

    @property
    def _whole(self) -> bool:
        return all(float(e).is_integer() for e in self.edges)


def _short(value: float) -> str:
    """`1500` -> `1.5k`."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
