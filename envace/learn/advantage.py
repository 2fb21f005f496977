"""Role-wise group advantage: a row's reward minus what its role earned on the same prompt.

Flows in: rewards, groups, roles, episodes (and turns) of the rows of one batch. Flows out: one advantage a
row and `Diagnostics`.
Invariant: only live rows (scored, with at least one trained token) enter a baseline; every other row gets
exactly 0. Inside a role group with a baseline, the members of `generation` and `trajectory` sum to zero.

A role group is all rows with the same (group_id, role), or (group_id, role, turn) when turns are credited
apart. Its members are live rows under the "generation" baseline and distinct episodes with a live row under
the others. It is
  empty     without a trained row, although the prompt (and turn) was played: advantages 0
  unscored  with trained rows, none of them scored: advantages 0
  lone      with one member: the switch `lone` decides, unless a running mean is there to compare with
  constant  with several members and one reward: advantages exactly 0 but under shrinkage
Suffixes: `_R` per row, `_K` per role group.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from envace.config.method import Method
from envace.learn.baselines import Live, baseline_of
from envace.learn.running import Means, priors
from envace.learn.sequences import TrainingRow
from envace.types import replace

Column = Sequence[Hashable] | np.ndarray  # one id a row


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStats:
    """Advantages of one role's live rows, and what its role groups are."""

    rows: int
    groups: int
    lone: int
    constant: int
    empty_groups: int
    unscored_groups: int
    adv_mean: float
    adv_std: float
    adv_zero: float
    """Share of rows whose advantage is exactly 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """What the batch looked like. `groups` are role groups with a live row; lone and constant ones are among
    them, empty and unscored ones are not."""

    rows: int
    live: int
    unscored: int
    """Rows without a reward."""
    untrained: int
    """Rows without a trained token: padding, frozen roles."""
    groups: int
    lone: int
    constant: int
    empty_groups: int
    unscored_groups: int
    roles: dict[str, RoleStats] = field(default_factory=dict)


def role_advantages(
    reward_R: Sequence[float | None] | np.ndarray,
    group_R: Column,
    role_R: Column,
    episode_R: Column,
    *,
    baseline: str = "trajectory",
    lone: str = "zero",
    trained_R: Sequence[bool] | np.ndarray | None = None,
    turn_R: Column | None = None,
    prior_R: np.ndarray | None = None,
    shrink_weight: float = 0.0,
) -> tuple[np.ndarray, Diagnostics]:
    """One advantage a row, [R] float64.

    `None` as a reward means unscored. `trained_R` is False for rows without a trained token. `turn_R` splits
    role groups by turn. `prior_R` is the running mean that the shrinkage baseline draws to, NaN for none. The
    id columns hold anything hashable.
    Raises ValueError for a NaN or infinite reward, columns of unequal length, or an episode in two groups.
    """
    n = len(reward_R)
    scored_R = np.fromiter((r is not None for r in reward_R), bool, n)
    value_R = np.fromiter((0.0 if r is None else r for r in reward_R), np.float64, n)
    if (bad := np.flatnonzero(~np.isfinite(value_R))).size:
        raise ValueError(f"reward of row {bad[0]} is {value_R[bad[0]]}; a reward is finite or None")
    trained_R = np.ones(n, bool) if trained_R is None else np.asarray(trained_R, bool)
    turn_R = np.zeros(n, np.int64) if turn_R is None else turn_R
    prior_R = np.full(n, np.nan) if prior_R is None else np.asarray(prior_R, np.float64)
    if {len(c) for c in (group_R, role_R, episode_R, trained_R, turn_R, prior_R)} != {n}:
        raise ValueError("rewards, groups, roles, episodes, turns and trained flags differ in length")
    (group, _), (role, roles), (episode, _), (turn, turns) = map(_codes, (group_R, role_R, episode_R, turn_R))
    # The role group a row is in, and its episode's part of that; the role is the fastest index.
    key_R = (group * len(turns) + turn) * len(roles) + role
    pair_R = (episode * len(turns) + turn) * len(roles) + role
    n_keys = (int(key_R.max(initial=-1)) // max(len(roles), 1) + 1) * len(roles)

    live_R = scored_R & trained_R
    reward, key, pair = value_R[live_R], key_R[live_R], pair_R[live_R]
    home_E = np.zeros(int(episode.max(initial=-1)) + 1, np.int64)
    home_E[episode[live_R]] = group[live_R]
    if (home_E[episode[live_R]] != group[live_R]).any():
        raise ValueError("an episode has rows in two groups")
    first_K = np.zeros(n_keys)
    first_K[key] = reward  # any member's reward: centring on it first makes equal rewards exactly 0
    delta = reward - first_K[key]
    live = Live(
        reward_R=delta,
        key_R=key,
        pair_R=pair,
        n_keys=n_keys,
        n_pairs=int(pair.max(initial=-1)) + 1,
        prior_R=prior_R[live_R] - first_K[key],
        weight=shrink_weight,
    )
    base, members_K = baseline_of(live, baseline)
    adv_R = np.zeros(n)
    adv_R[live_R] = np.where(np.isnan(base), reward if lone == "raw" else 0.0, delta - base)

    played_K, trained_K, live_K = (
        np.bincount(keys, minlength=n_keys) > 0 for keys in (key_R, key_R[trained_R], key)
    )
    reached_K = np.repeat(played_K.reshape(-1, max(len(roles), 1)).any(1), len(roles))  # by any role
    differ_K = np.bincount(key, delta != 0, minlength=n_keys) > 0
    kinds = {
        "groups": live_K,
        "lone": members_K == 1,
        "constant": live_K & (members_K != 1) & ~differ_K,
        "empty_groups": reached_K & ~trained_K,
        "unscored_groups": trained_K & ~live_K,
    }
    stats = {}
    for code, name in enumerate(roles):
        if (own := adv_R[live_R & (role == code)]).size:
            stats[str(name)] = RoleStats(
                rows=own.size,
                adv_mean=float(own.mean()),
                adv_std=float(own.std()),
                adv_zero=float((own == 0).mean()),
                **{kind: int(kind_K[code :: len(roles)].sum()) for kind, kind_K in kinds.items()},
            )
    found = Diagnostics(
        rows=n,
        live=int(live_R.sum()),
        unscored=int(n - scored_R.sum()),
        untrained=int(n - trained_R.sum()),
        roles=stats,
        **{kind: int(kind_K.sum()) for kind, kind_K in kinds.items()},
    )
    return adv_R, found


def advantages(
    rows: Sequence[TrainingRow], method: Method, means: Means | None = None
) -> tuple[list[TrainingRow], Diagnostics]:
    """The rows with their advantages filled in, in the same order. `means` is the running mean after the step
    before, read by the shrinkage baseline alone. Raises ValueError as `role_advantages`."""
    adv_R, found = role_advantages(
        [row.reward for row in rows],
        [row.group_id for row in rows],
        [str(row.role) for row in rows],
        [row.episode_id for row in rows],
        baseline=method.baseline,
        lone=method.lone,
        trained_R=np.array([row.trained > 0 for row in rows], bool),
        turn_R=np.array([row.turn for row in rows], np.int64) if method.credit == "reward_to_go" else None,
        prior_R=priors(rows, means or {}, method),
        shrink_weight=method.shrink_weight,
    )
    return [replace(row, advantage=float(a)) for row, a in zip(rows, adv_R, strict=True)], found


def _codes(column: Column) -> tuple[np.ndarray, list[Hashable]]:
    """Ids as small integers, and the id each integer stands for."""
    ids: Sequence[Hashable] = column.tolist() if isinstance(column, np.ndarray) else column
    table: dict[Hashable, int] = {}
    codes = [table.setdefault(value, len(table)) for value in ids]
    return np.array(codes, np.int64), list(table)
