"""Rows in, staged tasks out.

Flows in: the configured source. Flows out: `data/staged/`, and its files in `data/raw/`.
Invariant: the folder is complete or absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.config import Params
from envace.errors import DataError
from envace.io.files import publish
from envace.types import Task


@task(cache_policy=NO_CACHE)
def stage_rows(run: Any, out: Path) -> dict[str, Any]:
    """Read, check, select, split; returns the manifest. Raises DataError naming the first bad field."""
    from envace.data.raw_files import adopt_raw, keep_raw
    from envace.data.stage import stage
    from envace.worlds import registry as worlds

    worlds.load(run.params.rollout.worlds)
    raw = out.parent / "raw"
    adopt_raw(raw, run.state, run.say)
    with publish(out) as scratch:
        manifest = stage(run.params, scratch, state=run.state, say=run.say)
    keep_raw(run.params, raw, run.state)
    return manifest


@task(cache_policy=NO_CACHE)
def report_manifest(run: Any, manifest: dict[str, Any]) -> None:
    """Counts to the terminal and to MLflow, the manifest's hash as a tag, the splits as datasets."""
    from envace.track.lineage import file_hash

    splits = [name.removesuffix(".parquet") for name in manifest["outputs"] if name.endswith(".parquet")]
    counts = {k: manifest["counts"][k] for k in ("read", *splits, "rejected")}
    reasons = manifest["counts"]["rejected_by_reason"]
    run.say(", ".join(f"{v} {k}" for k, v in counts.items()))
    if reasons:
        largest = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        run.say(f"left out: {', '.join(f'{n} {r}' for r, n in largest)}; data/staged/rejects.jsonl says why")
    run.metrics(
        {f"data/{k}": v for k, v in counts.items()} | {f"data/left_out.{r}": n for r, n in reasons.items()}
    )
    run.log.tags({"data.manifest": file_hash(run.path("data", "staged", "manifest.json"))})
    note_rows(run, *splits)


def note_rows(run: Any, *splits: str) -> None:
    """Say on the MLflow run which staged splits it uses, as datasets."""
    from envace.track.dataset import log_datasets

    log_datasets(run.log, run.path("data", "staged"), splits)


WANTS = {"unseen": "desk.unseen_tasks", "files": "desk.files_tasks"}  # split -> the parameter that stages it


def split_file(run: Any, split: str) -> Path:
    """The file of a staged split."""
    return run.path("data", "staged", f"{split}.parquet")


def read_split(run: Any, split: str) -> list[Task]:
    """The tasks of a staged split: train, held, unseen or files. Raises DataError naming what would stage it."""
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
    if getattr(params.desk, key.removeprefix("desk.")) == 0:
        return f"{key} is 0; set how many tasks to stage and run stage_data again"
    return f"{key} was 0 when the data was staged; run stage_data again"
