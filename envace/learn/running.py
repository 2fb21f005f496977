"""The running mean of rewards that `baseline: shrinkage` draws towards.

Flows in: the rows of a step and the state after the step before. Flows out: what each row's baseline is drawn
to, and the state after this step, one small JSON file a step in the run's work folder.
Invariant: the state a step reads holds earlier steps only, so a row's baseline never knows its own reward
beyond its group; the state after step n is a function of the rewards of steps 1 to n, so a run resumed from
any checkpoint reads what the unbroken run read.

A mean is kept for each role and data source (`Task.source`): a role earns differently on the tasks of another
source, and a mean over both would be neither's. It is known before anything is played: a baseline that
depended on what happened in an episode would be no baseline. Under `credit: reward_to_go` each turn has a
mean of its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from envace.config.method import Method
from envace.errors import DataError
from envace.io.files import replacing
from envace.learn.sequences import TrainingRow

Means = Mapping[str, float]  # "act/desk" -> mean reward; "act/desk/1" for a turn
FORMAT = 2  # of the file: the form of its keys
PLACE = "running/{step}.json"  # in the run's work folder


def mean_key(row: TrainingRow, method: Method) -> str:
    """Which mean a row belongs to: `act/desk`, or `act/desk/1` when turns are credited apart."""
    turn = f"/{row.turn}" if method.credit == "reward_to_go" else ""
    return f"{row.role.value}/{row.source}{turn}"


def priors(rows: Sequence[TrainingRow], means: Means, method: Method) -> np.ndarray:
    """[R] what each row's baseline is drawn to; NaN where no earlier step saw any."""
    return np.array([means.get(mean_key(row, method), np.nan) for row in rows], np.float64)


def updated(means: Means, rows: Sequence[TrainingRow], method: Method) -> dict[str, float]:
    """The means after a step: memory * old + (1 - memory) * the step's mean over trajectories.

    Only scored rows with a trained token count. A mean the step says nothing of stays; a new one is the
    step's.
    """
    earned: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.reward is not None and row.trained:
            earned[mean_key(row, method)][row.episode_id].append(row.reward)
    after = dict(means)
    for key, episodes in earned.items():
        now = float(np.mean([np.mean(rewards) for rewards in episodes.values()]))
        after[key] = method.shrink_memory * means.get(key, now) + (1 - method.shrink_memory) * now
    return after


def read_means(work: Path, step: int) -> dict[str, float]:
    """The state after `step`; empty before the first one. Raises FileNotFoundError when a step left none,
    DataError when it is of another format: its keys would match no row."""
    if step <= 0:
        return {}
    path = work / PLACE.format(step=step)
    state = json.loads(path.read_text(encoding="utf-8"))
    if state.get("format") != FORMAT:
        raise DataError(
            f"{path} holds the running means in another format than {FORMAT}, so the run "
            f"cannot go on from them; move {work} away and train again, which starts a new work folder"
        )
    means: dict[str, float] = state["means"]
    return means


def write_means(work: Path, step: int, means: Means) -> None:
    """Store the state after `step`, whole or not at all."""
    with replacing(work / PLACE.format(step=step)) as part:
        text = json.dumps({"format": FORMAT, "means": dict(means)}, sort_keys=True)
        part.write_text(text, encoding="utf-8")
