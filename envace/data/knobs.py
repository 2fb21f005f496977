"""The parameters of staging, each with the type its code needs.

Flows in: `Params`. Flows out: `Knobs`.
Invariant: nothing else in staging reads `data.*` by name, but for the source and the limits that are always there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from envace.config import Params
from envace.data.dealt import read_splits
from envace.data.length import Counter
from envace.data.rules import Options
from envace.data.select import Ratios, read_ratios
from envace.data.sift import Sieve


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a user may turn."""

    options: Options = Options()  # data.require_thinking, data.strict_tool_schema
    ratios: Ratios = field(default_factory=dict)  # data.select
    split: str = "hash"  # data.split: hash | first_n
    held_rows: int = 100  # data.held_rows, for first_n
    workers: int = 1  # processes; data.workers, 0 there means one a core
    limit: int = 3500  # data.max_first_prompt_tokens
    seed: int = 0

    def sieve(self, count: Counter, licence: str = "") -> Sieve:
        """What rows are held to; `licence` is that of rows which state none."""
        return Sieve(count, self.limit, self.options, self.ratios, self.seed, licence)


def knobs(params: Params) -> Knobs:
    """The knobs of a set of parameters. Raises ParamsError."""
    data = params.data
    read_splits(data.splits, data.source)
    options = Options(require_thinking=data.require_thinking, strict_tools=data.strict_tool_schema)
    return Knobs(
        options=options,
        ratios=read_ratios(data.select),
        split=data.split,
        held_rows=data.held_rows,
        workers=data.workers or cores(),
        limit=data.max_first_prompt_tokens,
        seed=params.seed,
    )


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
