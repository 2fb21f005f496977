"""Rows that fill a batch up to a multiple.

Flows in: how many rows there are and what number they must be a multiple of. Flows out: which rows are copied.
Invariant: the same seed and step choose the same copies. Nothing here knows what a row is, so one choice serves rows and
streams alike.

`duplicates`  as the published code: rows drawn at random stand in the batch once more, before baselines, so they count
              in their group's mean and have their gradient twice.
`masked`      no row is copied; the engine adds rows without a trained token, which enter no baseline and have no weight.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

COPIED_TO = 8  # rows a rank: the published code fills up to its log-probability micro-batch on every rank


def copies(how: str, n: int, ranks: int, seed: int, step: int) -> list[int]:
    """Numbers of the rows (of `n`, in an order the caller fixes) to be copied, under the switch `padding`."""
    return PADDINGS[how](n, ranks * COPIED_TO, seed, step)


def _duplicates(n: int, multiple: int, seed: int, step: int) -> list[int]:
    missing = -n % multiple if n else 0
    drawn = np.random.default_rng([seed, step]).choice(n, missing, replace=missing > n) if missing else []
    return [int(i) for i in drawn]


PADDINGS: dict[str, Callable[[int, int, int, int], list[int]]] = {
    "duplicates": _duplicates,
    "masked": lambda n, multiple, seed, step: [],
}
