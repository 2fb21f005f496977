"""Training as one call: verl in a subprocess, followed, resumed, and judged by the steps it finished.

The work folder then holds checkpoints, episodes of every step, metrics and the log. Invariant: success means
that exactly the demanded number of optimizer steps stands in a whole checkpoint; an exit status of 0 alone is
not believed.

`python -m envace.engine.launch --arm envace --seed 1` trains without Prefect, DVC or MLflow.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envace.config import Params, load
from envace.data.store import read_tasks
from envace.engine import checkpoints, process
from envace.engine.overrides import interpreter, trainer_env, verl_overrides
from envace.engine.run_files import Progress, RunFile, follow, last_beat, line, read_steps
from envace.engine.work_folder import ray_folder, work_key
from envace.errors import DataError, EnvironmentUnready, StageFailed, boundary
from envace.io.children import innermost_error
from envace.judge.checklist import training_task
from envace.worlds.registry import load as load_worlds

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    work: Path
    steps: int
    resumed_from: int
    """0: from the start weights."""
    seconds: float
    ran: bool
    """False: the demanded step was there already."""


def train(
    params: Params,
    arm: str,
    seed: int,
    *,
    tasks_file: Path,
    start: Path,
    work: Path,
    on_progress: OnProgress = lambda event: None,
    env: dict[str, str] | None = None,
) -> TrainResult:
    """Train to `params.train.steps` steps, from the last whole checkpoint of `work` if there is one.

    Raises EnvironmentUnready when a run of this folder is alive, DataError without enough tasks, and
    StageFailed (with the log's path) when verl fails, stalls or ends short.
    """
    work, began, steps = work.resolve(), time.time(), params.train.steps
    work.mkdir(parents=True, exist_ok=True)
    process.refuse_second(work)
    process.reap(work)
    resumed = checkpoints.ready(work, steps)
    recorded = {record["step"] for record in read_steps(work)}
    if lost := [step for step in range(1, resumed + 1) if step not in recorded]:  # by a kill or a full disk
        resumed = checkpoints.ready(work, lost[0] - 1)
    if resumed == steps:
        return TrainResult(work=work, steps=steps, resumed_from=resumed, seconds=0.0, ran=False)
    _check_tasks(params, arm, tasks_file)
    paths = {"tasks_file": str(tasks_file.resolve()), "start": str(start.resolve()), "work": str(work)}
    run_file = work / "run.json"
    RunFile(params=params, arm=arm, seed=seed, **paths).write(run_file)
    with ray_folder(work) as ray_dir:
        told = trainer_env(params, run_file, work, os.environ | (env or {}), str(ray_dir))
        overrides = verl_overrides(params, arm, seed, **paths, ray_dir=str(ray_dir))
        try:
            argv = [interpreter(params), "-m", "verl.trainer.main_ppo", *overrides]
            _run(params, argv, told, work, on_progress)
        finally:
            process.reap(work)
    reached = checkpoints.repair(work)
    if reached != steps:
        raise StageFailed(
            f"training ended with status 0 after step {reached} of {steps}: "
            "finished steps must equal demanded ones",
            work / "trainer.log",
        )
    return TrainResult(work=work, steps=steps, resumed_from=resumed, seconds=time.time() - began, ran=True)


def _check_tasks(params: Params, arm: str, tasks_file: Path) -> None:
    """What would stop the episodes is found before verl is started."""
    load_worlds(params.rollout.worlds)
    tasks, method = read_tasks(tasks_file), params.resolved_method(arm)
    if len(tasks) < params.train.prompts:
        raise DataError(
            f"{tasks_file} holds {len(tasks)} tasks, fewer than train.prompts = {params.train.prompts}"
        )
    for task in tasks:
        training_task(task, method)


def _run(params: Params, argv: list[str], env: dict[str, str], work: Path, on_progress: OnProgress) -> None:
    log = work / "trainer.log"
    offset = log.stat().st_size if log.exists() else 0
    watcher = Watcher(params, work, on_progress)
    try:
        child = process.start_trainer(argv, env, work)
    except OSError as e:
        raise EnvironmentUnready(f"cannot start the trainer with {argv[0]}: {e}; check engine.python") from e
    child.wait(tick=watcher.tick, step_s=0.5)
    if watcher.tick():
        process.reap(work)
        raise StageFailed(f"training was stopped: {watcher.complaint}", log)
    if status := child.popen.wait():
        failed = f"training failed at step {watcher.step} of {params.train.steps}"
        if status < 0:  # a signal speaks for itself, a status has its cause in the log
            raise StageFailed(f"{failed}: killed by signal {-status}", log)
        raise StageFailed(f"{failed} (status {status}): {innermost_error(log, offset)}", log)


class Watcher:
    """Forwards progress and complains about silence. `step` is the last finished step seen.

    Silence is measured by a clock that neither steps nor runs while the machine is suspended.
    """

    complaint = ""

    def __init__(self, params: Params, work: Path, on_progress: OnProgress):
        self.engine, self.work, self.on_progress = params.engine, work, on_progress
        self.step, self.alive, self.last_beat = 0, False, last_beat(work)
        self.began = self.heard = time.monotonic()
        path = work / "progress.jsonl"
        self.offset = path.stat().st_size if path.exists() else 0

    def tick(self) -> bool:
        """Called twice a second; true, with a `complaint`, when the run must be stopped."""
        for record, offset in follow(self.work / "progress.jsonl", self.offset):
            self.offset = offset
            self.alive |= record["phase"] != "template"  # told before anything heavy has started
            self.step = max(self.step, record["step"])
            self.on_progress(Progress(**record))
        now, engine, beat = time.monotonic(), self.engine, last_beat(self.work)
        if beat != self.last_beat:
            self.last_beat, self.heard = beat, now
        silent = now - self.heard
        if now - self.began > engine.deadline_s:
            self.complaint = f"it ran longer than engine.deadline_s = {engine.deadline_s:g}"
        elif not self.alive and silent > engine.start_timeout_s:
            self.complaint = f"no sign of life within engine.start_timeout_s = {engine.start_timeout_s:g}"
        elif self.alive and silent > engine.step_timeout_s:
            self.complaint = f"silent for longer than engine.step_timeout_s = {engine.step_timeout_s:g}"
        return bool(self.complaint)


def main() -> None:
    """Train one arm from staged data and start weights, printing a line a step."""
    cli = argparse.ArgumentParser(prog="python -m envace.engine.launch", description=main.__doc__)
    cli.add_argument("--params", default="params.yaml")
    cli.add_argument("--arm", default="envace")
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--tasks", type=Path, default=Path("data/staged/train.parquet"))
    cli.add_argument("--start", type=Path, default=Path("models/start"))
    cli.add_argument("--work", type=Path, help="default: .state/train/<key>")
    args = cli.parse_args()

    def show(event: Progress) -> None:
        if said := line(event):
            print(said, flush=True)

    with boundary("train"):
        params, arm, seed = load(args.params), args.arm, args.seed
        paths = {"tasks_file": args.tasks, "start": args.start}
        work = args.work or Path(".state/train") / work_key(params, arm, seed, **paths)
        result = train(params, arm, seed, **paths, work=work, on_progress=show)
        what, steps = "trained" if result.ran else "already trained", len(read_steps(work))
        took = f"{what} to step {result.steps} in {result.seconds:.0f} s"
        print(f"{took}, {steps} steps recorded; work folder {work}")


if __name__ == "__main__":
    main()
