"""Checkpoints of a training: which are whole, which is the last, which may go, which weights were kept.

Of verl's `checkpoints/global_step_N` folders at most `train.rolling` stay, weights of every
`train.keep_every`-th step are copied to `kept/`, verl's tracker names a whole one, and the train stage
publishes a manifest as `kept.json`.
Invariant: a checkpoint counts only when verl finished writing it and nothing of it was cut since: its `WHOLE`
marker says the size of every file. What is not whole is removed before the next start and never resumed from,
and an older whole one is. An entry of the manifest is the
sha256 of a step's model shards, or empty where no whole checkpoint of the step is left; entry 0 is the hash
of the start policy.

State a resumed run needs: weights, optimizer and scheduler, the RNG of every rank (all in the shard files).
Prompt order and sampling seeds are functions of seed and step; the one baseline that remembers (shrinkage)
keeps a file a step of its own (`envace/learn/running.py`).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TypedDict

from envace.engine.run_files import current
from envace.errors import DataError, UserError
from envace.io.files import write_text
from envace.policy.card import files_hash
from envace.types import JSON

MARKER = "WHOLE"
TRACKER = "latest_checkpointed_iteration.txt"


def steps_saved(work: Path) -> list[int]:
    """Steps with a whole checkpoint, ascending."""
    folders = (work / "checkpoints").glob("global_step_*")
    return sorted(int(folder.name.removeprefix("global_step_")) for folder in folders if _whole(folder))


def folder_of(work: Path, step: int) -> Path:
    """The weights of a step: the rolling checkpoint, or the kept copy. Raises FileNotFoundError."""
    for parent in ("checkpoints", "kept"):
        folder = work / parent / f"global_step_{step}"
        if _whole(folder):
            return folder
    raise FileNotFoundError(f"no checkpoint of step {step} under {work}")


def _whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / MARKER).read_text())
        return not isinstance(sizes, dict) or sizes == _sizes(folder)  # a number in folders of old
    except (FileNotFoundError, ValueError):
        return False


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / MARKER)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def repair(work: Path) -> int:
    """Remove checkpoints that are not whole, point the tracker at the last that is; its step, 0 for none."""
    root = work / "checkpoints"
    for folder in root.glob("global_step_*"):
        if not _whole(folder):
            shutil.rmtree(folder)
    for part in (work / "kept").glob("*.part"):
        shutil.rmtree(part)
    last = max(steps_saved(work), default=0)
    if last:
        write_text(root / TRACKER, str(last))
    else:
        (root / TRACKER).unlink(missing_ok=True)
    return last


def ready(work: Path, step: int) -> int:
    """Forget checkpoints that are not whole or lie beyond a step: a run that is asked for fewer steps starts
    again from there. The last step that is left."""
    for later in (s for s in steps_saved(work) if s > step):
        shutil.rmtree(work / "checkpoints" / f"global_step_{later}")
    return repair(work)


def finish(folder: Path, work: Path, step: int, rolling: int, keep_every: int) -> None:
    """Mark a checkpoint whole, keep its weights if its turn has come, and let old ones go."""
    write_text(folder / MARKER, json.dumps(_sizes(folder)))
    if keep_every and step % keep_every == 0:  # enough to export and evaluate, not to resume
        target = work / "kept" / folder.name
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(folder, part, ignore=shutil.ignore_patterns("optim_*", "extra_state_*", "data.pt"))
        write_text(part / MARKER, json.dumps(_sizes(part)))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(part, target)
    for old in steps_saved(work)[:-rolling]:
        shutil.rmtree(work / "checkpoints" / f"global_step_{old}")


class Keeper:
    """verl's checkpoint callback: called on the driver once all ranks have written."""

    def __init__(self, config: JSON = None):
        run = current()
        self.work, self.train = Path(run.work), run.params.train

    def on_save(self, trainer: JSON, global_step: int, checkpoint_dir: str, **kwargs: JSON) -> None:
        finish(Path(checkpoint_dir), self.work, global_step, self.train.rolling, self.train.keep_every)


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
