"""Rolling checkpoints: which are whole, which is the last, which may go.

Flows in: verl's `checkpoints/global_step_N` folders and its tracker file. Flows out: at most `train.rolling`
of them, weights of every `train.keep_every`-th step under `kept/`, and a tracker that names a whole one.
Invariant: a checkpoint counts only when verl finished writing it, which its `WHOLE` marker says; what a kill
left half-written is removed before the next start and never resumed from.

State a resumed run needs: weights, optimizer and scheduler, the RNG of every rank (all in the shard files).
Prompt order and sampling seeds are functions of seed and step; the one baseline that remembers (shrinkage) keeps a file
a step of its own (`envace/learn/running.py`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

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
        _write(root / TRACKER, str(last))
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
    _write(folder / MARKER, str(step))
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


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


class Keeper:
    """verl's checkpoint callback: called on the driver once all ranks have written."""

    def __init__(self, config: Any = None):
        from envace.engine.runfile import current

        run = current()
        self.work, self.train = Path(run.work), run.params.train

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        finish(Path(checkpoint_dir), self.work, global_step, self.train.rolling, self.train.keep_every)
