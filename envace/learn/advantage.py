"""Role-wise group advantage: a row's reward minus what its role earned on the same prompt.

Flows in: rewards, groups, roles and episodes of the rows of one batch. Flows out: one advantage a row and
`Diagnostics`.
Invariant: only live rows (scored, with at least one trained token) enter a baseline; every other row gets
exactly 0. Inside a role group that is neither lone nor raw, the baseline's members sum to zero.

A role group is all live rows with the same (group_id, role). Its members are rows under the "generation"
baseline and distinct episodes under "trajectory". A group with one member is lone.
Suffixes: `_R` per row, `_K` per role group, `_E` per (episode, role).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envace.method import Method
from envace.types import Row, replace

# (reward_R, key_R, pair_R, n_keys, n_pairs) -> mean_K, members_K
Baseline = Callable[[np.ndarray, np.ndarray, np.ndarray, int, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStats:
    """Advantages of one role's live rows."""

    rows: int
    groups: int
    lone: int
    constant: int
    adv_mean: float
    adv_std: float
    adv_zero: float  # share of rows whose advantage is exactly 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What the batch looked like. Counts of groups are role groups with a live row."""

    rows: int
    live: int
    unscored: int  # rows without a reward
    untrained: int  # rows without a trained token: padding, frozen roles
    groups: int
    lone: int
    constant: int  # more than one row or episode, all with the same reward
    roles: dict[str, RoleStats] = field(default_factory=dict)


def role_advantages(
    reward_R: Sequence[float | None] | np.ndarray,
    group_R: Sequence[Any] | np.ndarray,
    role_R: Sequence[Any] | np.ndarray,
    episode_R: Sequence[Any] | np.ndarray,
    *,
    baseline: str = "trajectory",
    lone: str = "zero",
    trained_R: Sequence[bool] | np.ndarray | None = None,
) -> tuple[np.ndarray, Diagnostics]:
    """One advantage a row, [R] float64.

    `None` as a reward means unscored. `trained_R` is False for rows without a trained token. The id columns
    hold anything hashable; non-negative integer arrays are used as they are (fastest).
    Raises ValueError for a NaN or infinite reward, columns of unequal length, or an episode in two groups.
    """
    reward_R, scored_R = _rewards(reward_R)
    n = len(reward_R)
    trained_R = np.ones(n, bool) if trained_R is None else np.asarray(trained_R, bool)
    if not n == len(group_R) == len(role_R) == len(episode_R) == len(trained_R):
        raise ValueError("rewards, groups, roles, episodes and trained flags differ in length")
    live_R = scored_R & trained_R
    every = live_R.all()
    columns = [_codes(c) for c in (group_R, role_R, episode_R)]
    (group, _), (role, roles), (episode, _) = (
        columns if every else [(c[live_R], names) for c, names in columns]
    )
    reward = reward_R if every else reward_R[live_R]

    key, pair = group * len(roles) + role, episode * len(roles) + role
    n_keys, n_pairs = int(key.max(initial=-1)) + 1, int(pair.max(initial=-1)) + 1
    _one_group_an_episode(group, episode)
    first_K = np.zeros(n_keys)
    first_K[key] = reward  # any member's reward: centring on it first makes equal rewards exactly 0
    delta = reward - first_K[key]
    mean_K, members_K = BASELINES[baseline](delta, key, pair, n_keys, n_pairs)
    lone_K = members_K == 1
    adv = LONE[lone](delta - mean_K[key], reward, lone_K[key])

    rows_K = np.bincount(key, minlength=n_keys)
    constant_K = (rows_K > 0) & ~lone_K & (np.bincount(key, delta != 0, minlength=n_keys) == 0)
    adv_R = adv if every else np.zeros(n)
    if not every:
        adv_R[live_R] = adv
    found = Diagnostics(
        rows=n,
        live=len(adv),
        unscored=int(n - scored_R.sum()),
        untrained=int(n - trained_R.sum()),
        groups=int((rows_K > 0).sum()),
        lone=int(lone_K.sum()),
        constant=int(constant_K.sum()),
        roles=_by_role(adv, role, roles, rows_K > 0, lone_K, constant_K),
    )
    return adv_R, found


def advantages(rows: Sequence[Row], method: Method) -> tuple[list[Row], Diagnostics]:
    """The rows with their advantages filled in, in the same order. Raises ValueError as `role_advantages`."""
    adv_R, found = role_advantages(
        [row.reward for row in rows],
        [row.group_id for row in rows],
        [str(row.role) for row in rows],
        [row.episode_id for row in rows],
        baseline=method.baseline,
        lone=method.lone,
        trained_R=[1 in row.loss_mask for row in rows],
    )
    return [replace(row, advantage=float(a)) for row, a in zip(rows, adv_R, strict=True)], found


def _rewards(reward_R: Sequence[float | None] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rewards as float64 (unscored ones 0) and which are scored. A non-finite reward is an error, not data."""
    if isinstance(reward_R, np.ndarray) and reward_R.dtype.kind == "f":
        value_R, scored_R = reward_R.astype(np.float64, copy=False), np.ones(len(reward_R), bool)
    else:
        scored_R = np.fromiter((r is not None for r in reward_R), bool, len(reward_R))
        value_R = np.fromiter((0.0 if r is None else r for r in reward_R), np.float64, len(reward_R))
    bad = np.flatnonzero(~np.isfinite(value_R))
    if bad.size:
        raise ValueError(f"reward of row {bad[0]} is {value_R[bad[0]]}; a reward is finite or None")
    return value_R, scored_R


def _codes(column: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """Ids as small integers, and the id each integer stands for."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and column.size:
        low, high = int(column.min()), int(column.max())
        if 0 <= low and high < 4 * column.size + 64:  # dense enough to index by
            return column.astype(np.int64, copy=False), list(range(high + 1))
    if isinstance(column, np.ndarray):
        column = column.tolist()
    table: dict[Any, int] = {}
    codes = [table.setdefault(value, len(table)) for value in column]
    return np.array(codes, np.int64), list(table)


def _one_group_an_episode(group: np.ndarray, episode: np.ndarray) -> None:
    home_E = np.zeros(int(episode.max(initial=-1)) + 1, np.int64)
    home_E[episode] = group
    if (home_E[episode] != group).any():
        raise ValueError("an episode has rows in two groups")


def _by_role(
    adv: np.ndarray,
    role: np.ndarray,
    names: list[Any],
    used_K: np.ndarray,
    lone_K: np.ndarray,
    constant_K: np.ndarray,
) -> dict[str, RoleStats]:
    stats = {}
    for code, name in enumerate(names):
        own = adv[role == code]
        if not own.size:
            continue
        of_K = slice(code, None, len(names))  # the role is the fastest index of a key
        stats[str(name)] = RoleStats(
            rows=own.size,
            groups=int(used_K[of_K].sum()),
            lone=int(lone_K[of_K].sum()),
            constant=int(constant_K[of_K].sum()),
            adv_mean=float(own.mean()),
            adv_std=float(own.std()),
            adv_zero=float((own == 0).mean()),
        )
    return stats


def generation_mean(
    reward: np.ndarray, key: np.ndarray, pair: np.ndarray, n_keys: int, n_pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Every row of the role counts once: long episodes pull the mean their way."""
    members_K = np.bincount(key, minlength=n_keys)
    return np.bincount(key, reward, minlength=n_keys) / np.maximum(members_K, 1), members_K


def trajectory_mean(
    reward: np.ndarray, key: np.ndarray, pair: np.ndarray, n_keys: int, n_pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Every episode with a row of the role counts once, with the mean over its rows."""
    rows_E = np.bincount(pair, minlength=n_pairs)
    reward_E = np.bincount(pair, reward, minlength=n_pairs)
    key_E = np.zeros(n_pairs, np.int64)
    key_E[pair] = key
    seen = np.flatnonzero(rows_E)
    return generation_mean(reward_E[seen] / rows_E[seen], key_E[seen], seen, n_keys, n_pairs)


BASELINES: dict[str, Baseline] = {"generation": generation_mean, "trajectory": trajectory_mean}
# (centred advantage, reward, is in a lone group) -> advantage
LONE: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "zero": lambda adv, reward, lone: np.where(lone, 0.0, adv),
    "raw": lambda adv, reward, lone: np.where(lone, reward, adv),
}
