"""The collusion gap: the same tasks played in rehearsal and in the true world by the same policy.

Invariant: both sides have the same tasks, trials, seeds, temperature and judge, and succeed by the same rule,
that every required item of every turn holds; no world decides what a rehearsal is worth. A pair in which
either side ended for reasons outside the policy is left out of both.

Names: `gap/rehearsed` and `gap/true` success by the required items, `gap/success` true success with the end
state, `gap/collusion` rehearsed minus true. Without interval, of the rehearsed side's responses beside the
true answers to the same calls (`envace.learn.collapse`): `gap/rehearsed_entropy` and `gap/true_entropy` in
bits a field, `gap/rehearsed_refusals` and `gap/true_refusals`, `gap/grounded` share of recorded calls
answered as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from envace.bench.committed import committed
from envace.bench.fidelity.scores import Score, score
from envace.bench.stats import paired_bootstrap
from envace.bench.worlds import NOT_THE_POLICY, Counting, Setting, play, ticking
from envace.judge.checklist import required_held
from envace.learn.collapse import collapse_metrics
from envace.policy.protocol import Policy
from envace.types import JSON, Episode, Task, replace

GapRow = dict[str, JSON]
SIDES = {"rehearsed": "rehearse", "true": "environment"}  # side -> who answers the calls
COLLAPSE = {
    "rehearsed_entropy": "collapse/rehearsed_state_entropy",
    "true_entropy": "collapse/true_state_entropy",
    "rehearsed_refusals": "collapse/refusal_share",
    "true_refusals": "collapse/true_refusal_share",
    "grounded": "collapse/grounded_share",
}


async def play_both(
    policy: Policy, tasks: Sequence[Task], *, progress: Counting | None = None, **setting: Unpack[Setting]
) -> dict[str, list[Episode]]:
    """Side -> one episode per (task, trial), both in the same order. Raises PoolAborted as an evaluation
    does.
    """
    method, tick = setting["method"], ticking(2 * len(tasks) * setting["trials"], progress)
    played = {}
    for side, source in SIDES.items():
        setting["method"] = replace(method, source=source, anchor_every=0)  # each side is all of its kind
        played[side] = await play(policy, tasks, prefix=f"{source}/", on_episode=tick, **setting)
    return played


def rows_of(tasks: Sequence[Task], played: dict[str, list[Episode]]) -> list[GapRow]:
    """What each pair of episodes came to; None where a side has no score."""
    by_id = {task.id: task for task in tasks}
    rows = []
    for imagined, real in zip(played["rehearsed"], played["true"], strict=True):
        task, row = by_id[real.task_id], {"task": real.task_id, "trial": real.attempt, "seed": real.seed}
        row |= dict.fromkeys((*SIDES, "success"))
        if not {imagined.stop, real.stop} & NOT_THE_POLICY:
            row |= {side: float(required_held(task, e.verdicts)) for side, e in zip(SIDES, (imagined, real))}
            row["success"] = committed(task, real)["success"]
        rows.append(row | {"stop_rehearsed": imagined.stop.value, "stop_true": real.stop.value})
    return rows


def summarise(
    tasks: Sequence[Task],
    played: dict[str, list[Episode]],
    rows: Sequence[GapRow],
    *,
    bootstrap: int,
    seed: int = 0,
) -> dict[str, Score]:
    """The scores of the module's docstring; a share of nothing has none."""
    paired = [r for r in rows if r["true"] is not None]
    found: dict[str, Score] = {}
    if paired:
        for name in ("rehearsed", "true", "success"):
            found[name] = score([(r["task"], r[name]) for r in paired], bootstrap, seed)
        sides: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        for r in paired:
            for by_task, name in zip(sides, SIDES):
                by_task.setdefault(r["task"], []).append(r[name])
        value, low, high = paired_bootstrap(*sides, bootstrap, seed)
        found["collusion"] = Score(value=value, low=low, high=high, calls=len(paired), tasks=len(sides[0]))
    usable = [e for e, r in zip(played["rehearsed"], rows, strict=True) if r["true"] is not None]
    metrics = collapse_metrics(usable, {task.id: task for task in tasks})
    calls, n_tasks = sum(len(e.observations) for e in usable), len({e.task_id for e in usable})
    for name, key in COLLAPSE.items():
        if key in metrics:
            found[name] = Score(value=metrics[key], low=None, high=None, calls=calls, tasks=n_tasks)
    return {f"gap/{name}": value for name, value in found.items()}
