"""Staged rows, as the stages that use them read them.

Flows in: `data/staged/<split>.parquet`. Flows out: its tasks; on the MLflow run which splits were used.
"""

from __future__ import annotations

from pathlib import Path

from envace.config import Params
from envace.errors import DataError
from envace.types import Task
from tasks.run import Run

WANTS = {split: f"{split}_tasks" for split in ("validation", "unseen", "files")}
"""Split -> the parameter of `desk` that stages it."""


def note_rows(run: Run, *splits: str) -> None:
    """Say on the MLflow run which staged splits it uses, as datasets."""
    from envace.track.dataset import log_datasets

    log_datasets(run.log, run.path("data", "staged"), splits)


def split_file(run: Run, split: str) -> Path:
    """The file of a staged split."""
    return run.path("data", "staged", f"{split}.parquet")


def read_split(run: Run, split: str) -> list[Task]:
    """The tasks of a split: train, held, unseen or files. Raises DataError naming what would stage it."""
    from envace.data.store import read_tasks
    from envace.rollout.few_shot import lend
    from envace.worlds import registry as worlds

    worlds.load(run.params.rollout.worlds)  # a row's rules may name the user's own kinds
    path = split_file(run, split)
    if split in WANTS and not path.is_file():
        raise DataError(f"{path} does not exist: {_why_unstaged(run.params, split)}")
    tasks, few_shot = read_tasks(path), run.params.resolved_method().few_shot
    return [lend(task, tasks, few_shot) for task in tasks]


def _why_unstaged(params: Params, split: str) -> str:
    key = WANTS[split]
    if params.data.source != "desk":
        return f"data.source {params.data.source!r} has no split {split}; only the desk's rows do"
    if getattr(params.desk, key) == 0:
        return f"desk.{key} is 0; set how many tasks to stage and run stage_data again"
    return f"desk.{key} was 0 when the data was staged; run stage_data again"
