"""Numbers with honest intervals: trials of one task are not independent, so tasks are what is resampled.

Invariant: an estimate is a function of means over tasks of the mean over a task's trials; the same input and
seed give the same interval, whatever the order of tasks. Fewer than two tasks in a stratum leave no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from envace.intervals import (
    LEVEL,
    Interval,
    Values,
    cluster_bootstrap,
    edges,
    interval,
    resampled,
    task_means,
)

__all__ = ["LEVEL", "Interval", "Values", "cluster_bootstrap", "task_means"]

Number = float | np.ndarray  # a number, or an array with one entry a resample
Means = Mapping[str, Number]  # stratum -> mean over its tasks


def stratified(
    strata: Mapping[str, np.ndarray], of: Callable[[Means], Number], n: int, seed: int
) -> Interval:
    """`of` the means of each stratum's tasks ([tasks, ...]), with an interval from `n` resamples of the tasks
    within each stratum. `of` must work on numbers and, entry by entry, on arrays of them.
    """
    point = float(of({name: tasks.mean(axis=0) for name, tasks in strata.items()}))
    if n < 1 or any(len(tasks) < 2 for tasks in strata.values()):
        return point, None, None
    rng = np.random.default_rng(seed)
    low, high = edges(of({name: resampled(strata[name], n, rng) for name in sorted(strata)}))
    return point, low, high


def paired_bootstrap(a: Values, b: Values, n: int, seed: int) -> Interval:
    """Mean of a - b and its interval; each resample draws the same tasks for both, so task difficulty
    cancels.

    Trials need not be equal in number. Raises ValueError when the two were not scored on the same tasks:
    which tasks to compare on is the caller's decision.
    """
    if only := sorted(a.keys() ^ b.keys()):
        raise ValueError(f"{len(only)} tasks are in one of the two only, e.g. {only[0]}")
    return interval(task_means(a) - task_means(b), n, seed)


def all_succeed(n: int, won: int, k: int) -> float:
    """Chance that k of n trials, of which `won` succeeded, all succeed."""
    return math.comb(won, k) / math.comb(n, k)


def any_succeeds(n: int, won: int, k: int) -> float:
    """Chance that one of k of n trials succeeds."""
    return 1 - math.comb(n - won, k) / math.comb(n, k)


def chances(
    values: Values, k: int, of: Callable[[int, int, int], float] = all_succeed
) -> dict[str, list[float]]:
    """Task -> one of the two chances above, without bias. ValueError for a task of fewer than k trials."""
    if short := next((t for t, v in values.items() if len(v) < k), None):
        raise ValueError(f"task {short} has {len(values[short])} trials, pass^{k} needs {k}")
    return {task: [of(len(v), sum(x >= 1 for x in v), k)] for task, v in values.items()}
