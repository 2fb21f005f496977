"""Intervals of numbers whose trials are not independent: tasks are what is resampled.

The same input and seed give the same interval, whatever the order of tasks. Fewer than two tasks leave no
interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Interval = tuple[float, float | None, float | None]
"""Estimate, low, high."""
Values = Mapping[str, Sequence[float]]
"""Task -> one value a trial."""
LEVEL = 0.95
CHUNK = 4_000_000
"""Resampled numbers held at once."""


def cluster_bootstrap(values_by_task: Values, n: int, seed: int) -> Interval:
    """Mean and interval from `n` resamples of whole tasks. Raises ValueError on no or non-finite values."""
    return interval(task_means(values_by_task), n, seed)


def task_means(values_by_task: Values) -> np.ndarray:
    """[tasks] in the order of their names. Raises ValueError on no or non-finite values."""
    if not values_by_task:
        raise ValueError("no tasks")
    means = np.array(
        [np.mean(values_by_task[t]) if len(values_by_task[t]) else np.nan for t in sorted(values_by_task)]
    )
    if not np.isfinite(means).all():
        raise ValueError("a task has no value, or one that is not finite")
    return means


def interval(means: np.ndarray, n: int, seed: int) -> Interval:
    if len(means) < 2:
        return float(means.mean()), None, None
    low, high = edges(resampled(means, n, np.random.default_rng(seed)))
    return float(means.mean()), low, high


def resampled(tasks: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """[n, ...] means of as many tasks, drawn with replacement; in pieces, as some sets hold a thousand."""
    step = max(1, CHUNK // tasks.size)
    sizes = [min(step, n - at) for at in range(0, n, step)]
    return np.concatenate([tasks[rng.integers(len(tasks), size=(m, len(tasks)))].mean(axis=1) for m in sizes])


def edges(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
