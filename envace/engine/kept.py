"""Kept weights: which steps of a training can still be exported, and which weights they are.

Flows in: a training's work folder. Flows out: the manifest that the train stage publishes as `kept.json`, one entry a
step, and a step's shards held against it.
Invariant: an entry is the sha256 of a step's model shards, or empty where no whole checkpoint of the step is left;
entry 0 is the hash of the start policy. The gigabytes stay in the work folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from envace.engine import checkpoints
from envace.errors import DataError, UserError


def manifest(work: Path, steps: int, start: str) -> dict[str, Any]:
    """`{"work": "<key>", "steps": {"step_0": ..., ...}}`. One entry a step, so that DVC watches a single one."""
    found = {key(0): start} | {key(step): shards_hash(work, step) for step in range(1, steps + 1)}
    return {"work": work.name, "steps": found}


def key(step: int) -> str:
    return f"step_{step}"


def shards_hash(work: Path, step: int) -> str:
    """sha256 over the names and bytes of a step's model shards; empty where the step is gone."""
    try:
        folder = checkpoints.folder_of(work, step)
    except FileNotFoundError:
        return ""
    digest = hashlib.sha256()
    for file in sorted((folder / "actor").glob("model_*")):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def require(said: dict[str, Any], work: Path, training: str, step: int) -> None:
    """Raises UserError for a step that was not kept, DataError when its weights are gone or others since."""
    kept = [int(name.removeprefix("step_")) for name, digest in said["steps"].items() if digest]
    wanted = said["steps"].get(key(step), "")
    again = (
        f"name a kept step in dynamics.steps, or set train.keep_every to a divisor of {step} and train from nothing "
        f"(remove {work})"
    )
    if not wanted:
        raise UserError(
            f"step {step} of {training} was not kept (train.keep_every); kept are {', '.join(map(str, kept))}: {again}"
        )
    if shards_hash(work, step) != wanted:
        raise DataError(
            f"the weights of step {step} of {training} are no longer those that training left in {work}: {again}"
        )
