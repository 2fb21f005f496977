"""What a row's reward is compared with.

Flows in: the live rows of a batch as integer columns. Flows out: one baseline a row, and how many members
each role group has.
Invariant: a baseline depends on the rewards of the row's own role group and on the running mean of earlier
steps, never on another group, and is NaN for a row with nothing to be compared with but itself.

`generation`     mean over the group's rows: long episodes pull it their way (the authors' code)
`trajectory`     mean over the group's episodes, each with the mean of its rows
`leave_one_out`  the same over the other episodes: independent of the row's own, larger by n / (n - 1)
`shrinkage`      (n * trajectory mean + k * running mean) / (n + k) for n episodes and k = `shrink_weight`
                 (reference: James and Stein's estimator with a fixed weight); a lone episode is compared with
                 the running mean too. Without a running mean, the trajectory mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Scored and trained rows. A key is a role group, a pair an episode's rows inside one."""

    reward_R: np.ndarray
    """Float64, less some number of its group that makes equal rewards exactly 0."""
    key_R: np.ndarray
    pair_R: np.ndarray
    n_keys: int
    n_pairs: int
    prior_R: np.ndarray
    """Running mean of earlier steps, less the same number; NaN where there is none."""
    weight: float
    """Trajectories that the running mean counts for."""


Baseline = Callable[[Live], tuple[np.ndarray, np.ndarray]]  # -> baseline_R, members_K


def generation(live: Live) -> tuple[np.ndarray, np.ndarray]:
    """Members are rows."""
    members_K = np.bincount(live.key_R, minlength=live.n_keys)
    sum_K = np.bincount(live.key_R, live.reward_R, minlength=live.n_keys)
    return _of_rows(live, sum_K, members_K), members_K


def trajectory(live: Live) -> tuple[np.ndarray, np.ndarray]:
    """Members are episodes with a live row in the group."""
    _, sum_K, members_K = _episodes(live)
    return _of_rows(live, sum_K, members_K), members_K


def leave_one_out(live: Live) -> tuple[np.ndarray, np.ndarray]:
    """Members are episodes; a row is compared with those that are not its own."""
    mean_E, sum_K, members_K = _episodes(live)
    others_R = (sum_K[live.key_R] - mean_E[live.pair_R]) / _some(members_K - 1)[live.key_R]
    return np.where(members_K[live.key_R] > 1, others_R, np.nan), members_K


def shrinkage(live: Live) -> tuple[np.ndarray, np.ndarray]:
    """Members are episodes."""
    _, sum_K, members_K = _episodes(live)
    n_R, mean_R = members_K[live.key_R], (sum_K / _some(members_K))[live.key_R]
    drawn_R = (n_R * mean_R + live.weight * live.prior_R) / (n_R + live.weight)
    own_R = np.where(n_R > 1, mean_R, np.nan)
    return np.where(np.isnan(live.prior_R) | (live.weight == 0), own_R, drawn_R), members_K


def _episodes(live: Live) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """mean_E of each pair's rows (0 for none), and over the pairs of a key their sum_K and number
    members_K."""
    rows_E = np.bincount(live.pair_R, minlength=live.n_pairs)
    mean_E = np.bincount(live.pair_R, live.reward_R, minlength=live.n_pairs) / _some(rows_E)
    key_E = np.zeros(live.n_pairs, np.int64)
    key_E[live.pair_R] = live.key_R
    seen = np.flatnonzero(rows_E)
    sum_K = np.bincount(key_E[seen], mean_E[seen], minlength=live.n_keys)
    return mean_E, sum_K, np.bincount(key_E[seen], minlength=live.n_keys)


def _of_rows(live: Live, sum_K: np.ndarray, members_K: np.ndarray) -> np.ndarray:
    """The mean of each row's role group; NaN where the row is its only member."""
    baseline_R: np.ndarray = np.where(members_K == 1, np.nan, sum_K / _some(members_K))[live.key_R]
    return baseline_R


def _some(count: np.ndarray) -> np.ndarray:
    at_least_one: np.ndarray = np.maximum(count, 1)
    return at_least_one


BASELINES: dict[str, Baseline] = {
    "generation": generation,
    "trajectory": trajectory,
    "leave_one_out": leave_one_out,
    "shrinkage": shrinkage,
}
