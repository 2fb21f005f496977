"""Checkpoints of a training: which are whole, which is the last, which may go, which weights were kept.

Flows in: verl's `checkpoints/global_step_N` folders and its tracker file. Flows out: at most `train.rolling`
of them, weights of every `train.keep_every`-th step under `kept/`, a tracker that names a whole one, and the
manifest that the train stage publishes as `kept.json`.
Invariant: a checkpoint counts only when verl finished writing it, which its `WHOLE` marker says; what a kill
left half-written is removed before the next start and never resumed from. An entry of the manifest is the
sha256 of a step's model shards, or empty where no whole checkpoint of the step is left; entry 0 is the hash
of the start policy.

State a resumed run needs: weights, optimizer and scheduler, the RNG of every rank (all in the shard files).
Prompt order and sampling seeds are functions of seed and step; the one baseline that remembers (shrinkage)
keeps a file a step of its own (`envace/learn/running.py`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TypedDict

from envace.engine.run_files import current
from envace.errors import DataError, UserError
from envace.io.files import write_text
from envace.policy.card import files_hash

MARKER = "WHOLE"
TRACKER = "latest_checkpointed_iteration.txt"


def steps_saved(work: Path) -> list[int]:
    """Steps with a whole checkpoint, ascending."""
    folders = (work / "checkpoints").glob(f"global_step_*/{MARKER}")
    return sorted(int(p.parent.name.removeprefix("global_step_")) for p in folders)


def folder_of(work: Path, step: int) -> Path:
    """The weights of a step: the rolling checkpoint, or the kept copy. Raises FileNotFoundError."""
    for parent in ("checkpoints", "kept"):
        folder = work / parent / f"global_step_{step}"
        if (folder / MARKER).exists():
            return folder
    raise FileNotFoundError(f"no checkpoint of step {step} under {work}")


def repair(work: Path) -> int:
    """Remove half-written checkpoints, point the tracker at the last whole one; that step, 0 for none."""
    root = work / "checkpoints"
    for folder in [*root.glob("global_step_*"), *(work / "kept").glob("*.part")]:
        if not (folder / MARKER).exists():
            shutil.rmtree(folder)
    last = max(steps_saved(work), default=0)
    if last:
        write_text(root / TRACKER, str(last))
    else:
        (root / TRACKER).unlink(missing_ok=True)
    return last


def drop_after(work: Path, step: int) -> None:
    """Forget checkpoints beyond a step: a run that is asked for fewer steps starts again from there."""
    for later in (s for s in steps_saved(work) if s > step):
        shutil.rmtree(work / "checkpoints" / f"global_step_{later}")
    repair(work)


def finish(folder: Path, work: Path, step: int, rolling: int, keep_every: int) -> None:
    """Mark a checkpoint whole, keep its weights if its turn has come, and let old ones go."""
    write_text(folder / MARKER, str(step))
    if keep_every and step % keep_every == 0:
        _keep(folder, work / "kept" / folder.name)
    for old in steps_saved(work)[:-rolling]:
        shutil.rmtree(work / "checkpoints" / f"global_step_{old}")


def _keep(folder: Path, target: Path) -> None:
    """Weights and configuration only: enough to export and evaluate, not to resume."""
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(folder, part, ignore=shutil.ignore_patterns("optim_*", "extra_state_*", "data.pt"))
    shutil.rmtree(target, ignore_errors=True)
    os.replace(part, target)


class Keeper:
    """verl's checkpoint callback: called on the driver once all ranks have written."""

    def __init__(self, config: object = None):
        run = current()
        self.work, self.train = Path(run.work), run.params.train

    def on_save(self, trainer: object, global_step: int, checkpoint_dir: str, **kwargs: object) -> None:
        finish(Path(checkpoint_dir), self.work, global_step, self.train.rolling, self.train.keep_every)


# --- what is published of them
# ----------------------------------------------------------------------------------------


class KeptSteps(TypedDict):
    """`{"work": "<key>", "steps": {"step_0": ..., ...}}`. One entry a step, so that DVC watches a
    single one."""

    work: str
    steps: dict[str, str]


def manifest(work: Path, steps: int, start: str) -> KeptSteps:
    """The hash of every step's weights that are still here; `start` is that of the start policy."""
    found = {"step_0": start} | {f"step_{step}": shards_hash(work, step) for step in range(1, steps + 1)}
    return {"work": work.name, "steps": found}


def shards_hash(work: Path, step: int) -> str:
    """sha256 over the names and bytes of a step's model shards; empty where the step is gone."""
    try:
        return files_hash((folder_of(work, step) / "actor").glob("model_*"))
    except FileNotFoundError:
        return ""


def require_kept(said: KeptSteps, work: Path, training: str, step: int) -> None:
    """Raises UserError for a step that was not kept, DataError when its weights are gone or others since."""
    kept = [name.removeprefix("step_") for name, digest in said["steps"].items() if digest]
    wanted = said["steps"].get(f"step_{step}", "")
    again = (
        f"name a kept step in dynamics.steps, or set train.keep_every to a divisor of {step} and train from "
        f"nothing (remove {work})"
    )
    if not wanted:
        raise UserError(
            f"step {step} of {training} was not kept (train.keep_every); kept are {', '.join(kept)}: {again}"
        )
    if shards_hash(work, step) != wanted:
        raise DataError(
            f"the weights of step {step} of {training} are no longer those that training left in {work}: "
            f"{again}"
        )
