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


def baseline_of(live: Live, how: str) -> tuple[np.ndarray, np.ndarray]:
    """baseline_R and members_K: rows under `generation`, else episodes with a live row in the group."""
    key_R = live.key_R
    if how == "generation":
        members_K = np.bincount(key_R, minlength=live.n_keys)
        sum_K = np.bincount(key_R, live.reward_R, minlength=live.n_keys)
        return np.where(members_K == 1, np.nan, sum_K / np.maximum(members_K, 1))[key_R], members_K
    rows_E = np.bincount(live.pair_R, minlength=live.n_pairs)
    mean_E = np.bincount(live.pair_R, live.reward_R, minlength=live.n_pairs) / np.maximum(rows_E, 1)
    key_E = np.zeros(live.n_pairs, np.int64)
    key_E[live.pair_R] = key_R
    seen = np.flatnonzero(rows_E)
    sum_K = np.bincount(key_E[seen], mean_E[seen], minlength=live.n_keys)
    members_K = np.bincount(key_E[seen], minlength=live.n_keys)
    several_R = members_K[key_R] > 1
    if how == "leave_one_out":
        others_R = (sum_K[key_R] - mean_E[live.pair_R]) / np.maximum(members_K - 1, 1)[key_R]
        return np.where(several_R, others_R, np.nan), members_K
    mean_R = (sum_K / np.maximum(members_K, 1))[key_R]
    own_R = np.where(several_R, mean_R, np.nan)
    if how == "trajectory" or live.weight == 0:
        return own_R, members_K
    n_R = members_K[key_R]
    drawn_R = (n_R * mean_R + live.weight * live.prior_R) / (n_R + live.weight)
    return np.where(np.isnan(live.prior_R), own_R, drawn_R), members_K
