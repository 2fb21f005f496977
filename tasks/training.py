"""Training of one arm with one seed, and its weights.

Flows in: parameters, staged tasks, start weights. Flows out: `runs/train/<arm>-<seed>/` and
`models/<arm>-<seed>/`.
Invariant: rolling checkpoints stay in `.state/train/<key>/`; only records of finished steps become outputs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import httpx
from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectException

from envace.engine import launch
from envace.engine.checkpoints import manifest
from envace.engine.launch import TrainResult
from envace.engine.run_files import Progress, line, read_steps
from envace.engine.work_folder import start_anew, work_key
from envace.errors import DataError, UserError
from envace.io.files import (
    check_writable,
    publish,
    read_state,
    unwritable,
    write_csv,
    write_json,
    write_text,
)
from envace.track.lineage import checkpoint_hash, versions
from envace.types import JSON, PolicyRef
from tasks.artifacts import log_training
from tasks.run import ANEW, Run
from tasks.tracking import trace_training

CURVE = ("step", "train/reward", "act/reward", "rehearse/reward")


def work_folder(run: Run, arm: str, seed: int) -> Path:
    """Where training of this arm keeps its checkpoints: named by what shapes it, the step count left out."""
    key = work_key(run.params, arm, seed, run.path("data/staged/train.parquet"), run.path("models/start"))
    return run.state / "train" / key


@task(cache_policy=NO_CACHE)
def run_training(
    run: Run, arm: str, seed: int, trainer: Callable[..., TrainResult] | None = None
) -> TrainResult:
    """Train, or go on where a killed attempt stopped; `trainer` stands in for the engine's `train`."""
    name, work = f"{arm}-{seed}", work_folder(run, arm, seed)
    if pipeline := os.environ.get(ANEW):
        start_anew(work, pipeline)
    out = run.path("runs/train", name)
    with unwritable(out):
        check_writable(out)
        check_writable(work)
    attempt = _attempts(work) + 1
    write_text(work / "attempts", str(attempt))
    run.log.tags({"envace.attempt": attempt, "envace.work": work.name})
    try:
        result = (trainer or launch.train)(
            run.params,
            arm,
            seed,
            tasks_file=run.path("data/staged/train.parquet"),
            start=run.path("models/start"),
            work=work,
            on_progress=ProgressView(run, f"train-{name}"),
            env={"MLFLOW_TRACKING_URI": os.environ["MLFLOW_TRACKING_URI"], "MLFLOW_RUN_ID": run.log.run_id},
        )
    except UserError:  # what its last steps looked like
        trace_training(run, work, name)
        raise
    run.log.tags({"envace.resumed_from": result.resumed_from, "envace.trained": str(result.ran).lower()})
    if not result.ran:
        run.say(f"already trained to step {result.steps}")
    return result


def _attempts(work: Path) -> int:
    """How many attempts at this work folder there were."""
    return read_state(work / "attempts", int, "delete it; only the count of attempts is lost") or 0


class ProgressView:
    """Shows progress of training in the terminal, in MLflow and as a Prefect progress artifact."""

    def __init__(self, run: Run, key: str):
        self.run, self.key = run, key.lower().replace("_", "-").replace(".", "-")
        self.artifact: UUID | None = None
        self.shown = True

    def __call__(self, event: Progress) -> None:
        if event.phase == "step":
            self.run.metrics(event.metrics, event.step)
            self.run.say(line(event))
        elif event.phase == "template":
            self.run.note(line(event))
        if self.shown:
            self._artifact(100.0 * event.step / max(event.steps, 1))

    def _artifact(self, percent: float) -> None:
        """A picture of progress only: a Prefect server that went away must not stop training."""
        try:
            if self.artifact is None:
                about = self.run.name
                made = create_progress_artifact(progress=percent, key=self.key, description=about)
                self.artifact = made if isinstance(made, UUID) else None  # its type also knows coroutines
            else:
                update_progress_artifact(self.artifact, progress=percent)
        except (httpx.HTTPError, PrefectException, RuntimeError) as e:
            self.shown = False
            self.run.say(f"warning: progress no longer reaches Prefect: {e}")


@task(cache_policy=NO_CACHE)
def write_training(run: Run, arm: str, seed: int, result: TrainResult) -> dict[str, JSON]:
    """Metrics and episodes of every step up to the demanded one, from the work folder."""
    work, out, last = result.work, run.path("runs/train", f"{arm}-{seed}"), result.steps
    steps = read_steps(work, last)
    if [s["step"] for s in steps] != list(range(1, last + 1)):
        raise DataError(f"{work}/metrics.jsonl lacks steps: it holds {len(steps)} of {last}")
    info = training_info(arm, seed, result, steps)
    with publish(out) as scratch:
        write_text(scratch / "metrics.jsonl", "".join(f"{json.dumps(s)}\n" for s in steps))
        with (scratch / "episodes.jsonl").open("wb") as handle:
            for path in (work / "episodes" / f"step_{step:06d}.jsonl" for step in range(1, last + 1)):
                handle.write(path.read_bytes() if path.is_file() else b"")
        write_csv(scratch / "curve.csv", steps, CURVE)
        write_json(scratch / "train.json", info)
        write_json(scratch / "kept.json", manifest(work, last, checkpoint_hash(run.root, "start")))
    trace_training(run, work, f"{arm}-{seed}", last)
    for step in () if result.ran else steps:  # the attempt that trained has them; this run shows them too
        run.metrics({k: v for k, v in step.items() if k != "step"}, step["step"])
    log_training(run, out, arm)
    return info


def training_info(
    arm: str, seed: int, result: TrainResult, steps: Sequence[Mapping[str, JSON]]
) -> dict[str, JSON]:
    """What train.json says."""
    rewards = [s["train/reward"] for s in steps if s.get("train/reward") is not None]
    tokens = [s["train/tokens"] for s in steps if "train/tokens" in s]
    seconds = sum(s.get("seconds/step", s.get("train/seconds", 0.0)) or 0.0 for s in steps)
    return {
        "arm": arm,
        "seed": seed,
        "steps": result.steps,
        "resumed_from": result.resumed_from,
        "attempts": _attempts(result.work) or 1,
        "seconds": result.seconds or seconds,
        "tokens": sum(tokens) if tokens else None,
        "reward_first": rewards[0] if rewards else None,
        "reward_last": rewards[-1] if rewards else None,
        "work": result.work.name,
        "versions": versions(),
    }


@task(cache_policy=NO_CACHE)
def export_weights(run: Run, arm: str, seed: int) -> PolicyRef:
    """Merge the checkpoint of the last demanded step into `models/<arm>-<seed>/`."""
    from envace.engine.export import export

    name, began = f"{arm}-{seed}", time.monotonic()
    said = read_state(run.path("runs/train", name, "train.json"), dict, f"run train@{name} again")
    if said is None:
        raise DataError(f"runs/train/{name}/train.json does not exist: run train@{name} first")
    out, work = run.path("models", name), run.state / "train" / said["work"]
    with unwritable(out):
        check_writable(out.parent)
    # relative where it can be, because the folder's name goes onto the card
    target = Path("models", name) if Path.cwd() == run.root else out
    ref = export(run.params, work, run.path("models/start"), target, name=name, step=said["steps"])
    took = time.monotonic() - began
    run.say(f"exported step {ref.step} as models/{name} in {took:.0f} s, hash {ref.hash[:12]}")
    return ref
