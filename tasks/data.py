"""Rows in, staged tasks out.

Flows in: the configured source. Flows out: `data/staged/`.
Invariant: the folder is complete or absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.types import Task
from tasks.files import publish


@task(cache_policy=NO_CACHE)
def stage_rows(run: Any, out: Path) -> dict[str, Any]:
    """Read, check, select, split; returns the manifest. Raises DataError naming the first bad field."""
    from envace.data.stage import stage

    with publish(out) as scratch:
        return stage(run.params, scratch)


@task(cache_policy=NO_CACHE)
def report_manifest(run: Any, manifest: dict[str, Any]) -> None:
    """Counts to the terminal and to MLflow, the manifest's hash as a tag."""
    from envace.track.lineage import file_hash

    counts = {k: manifest["counts"][k] for k in ("read", "train", "held", "rejected")}
    run.say(", ".join(f"{v} {k}" for k, v in counts.items()))
    run.metrics({f"data/{k}": v for k, v in counts.items()})
    run.log.tags({"data.manifest": file_hash(run.path("data", "staged", "manifest.json"))})


def read_split(run: Any, split: str) -> list[Task]:
    """The tasks of a staged split: train or held."""
    from envace.data.store import read_tasks

    return read_tasks(run.path("data", "staged", f"{split}.parquet"))
