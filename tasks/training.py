"""Weights: the start policy, training, export.

Flows in: parameters, staged tasks, start weights. Flows out: `models/<name>/` and `runs/train/<name>/`.
Invariant: rolling checkpoints stay in `.state/train/<key>/`; only finished weights and records become outputs.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.config import SFT
from envace.errors import DataError, EnvironmentUnready, UserError
from envace.io.files import check_writable, publish, writable, write_csv, write_json
from envace.types import PolicyRef
from tasks.tracking import lineage_of_model, trace_training

CURVE = ("step", "train/reward", "act/reward", "rehearse/reward")


@task(cache_policy=NO_CACHE)
def make_start(run: Any, out: Path) -> PolicyRef:
    """The policy training starts from, by `policy.kind`."""
    with publish(out) as scratch:
        return STARTS[run.params.policy.kind](run, scratch, out)


def _tiny(run: Any, scratch: Path, out: Path) -> PolicyRef:
    from envace.policy.card import write_card
    from envace.policy.tiny import build_start
    from envace.types import replace

    ref = build_start(run.params, scratch, progress=lambda event: _show_warm_start(run, event))
    return write_card(scratch, replace(ref, uri=_relative(run, out)))


def _show_warm_start(run: Any, event: Mapping[str, float]) -> None:
    step, steps = int(event["step"]), int(event["steps"])
    run.metrics({f"warm/{k}": v for k, v in event.items() if k not in ("step", "steps")}, step)
    if step % 50 == 0 or step == steps:
        run.say(f"supervised update {step} of {steps}, loss {event['loss']:.3f}, {event['seconds']:.0f} s")


@task(cache_policy=NO_CACHE)
def make_supervised(run: Any, seed: int, out: Path) -> PolicyRef:
    """The start policy after `sft.updates` more supervised updates. Raises UserError for a policy that has none."""
    from envace.policy.card import write_card
    from envace.policy.tiny import continue_start
    from envace.types import replace

    if run.params.policy.kind not in ("bundled", "tiny"):
        raise UserError(
            f"sft.seeds asks for supervised training, but policy.kind is {run.params.policy.kind!r}: expert texts "
            "exist for the desk's own policies (bundled, tiny); set sft.seeds to []"
        )
    with publish(out) as scratch:
        ref = continue_start(
            run.params,
            run.path("models/start"),
            scratch,
            seed,
            progress=lambda event: _show_warm_start(run, event),
        )
        return write_card(scratch, replace(ref, uri=_relative(run, out), name=f"{SFT}-{seed}"))


def _local(run: Any, scratch: Path, out: Path) -> PolicyRef:
    source = Path(run.params.policy.uri).expanduser()
    if not (source / "config.json").is_file():
        raise EnvironmentUnready(f"policy.uri {source} holds no model (no config.json)")
    for item in sorted(p for p in source.iterdir() if p.is_file() and p.name != "card.json"):
        _link_or_copy(item, scratch / item.name)
    return _card(run, scratch, out, "local", str(source))


def _hub(run: Any, scratch: Path, out: Path) -> PolicyRef:
    from envace.policy.hub import fetched

    p = run.params.policy
    folder = fetched(p.uri, p.revision)
    for item in sorted(q for q in folder.iterdir() if q.is_file()):
        _link_or_copy(item.resolve(), scratch / item.name)
    return _card(run, scratch, out, "hub", p.uri)


def _bundled(run: Any, scratch: Path, out: Path) -> PolicyRef:
    """The desk's own start policy. Copied, never linked: what is made of it must not reach the repository."""
    from envace.policy.warmstart import BUNDLED

    for item in sorted(p for p in BUNDLED.iterdir() if p.is_file() and p.name != "card.json"):
        shutil.copy2(item, scratch / item.name)
    return _card(
        run, scratch, out, "bundled", "the folder that comes with the project (make warmstart rebuilds it)"
    )


STARTS: dict[str, Callable[[Any, Path, Path], PolicyRef]] = {
    "bundled": _bundled, "tiny": _tiny, "local": _local, "hub": _hub,
}  # fmt: skip


def _card(run: Any, folder: Path, out: Path, kind: str, origin: str) -> PolicyRef:
    from envace.policy.card import write_card

    ref = PolicyRef(kind=kind, uri=_relative(run, out), revision=run.params.policy.revision, name="start")
    run.say(f"start policy from {origin}")
    return write_card(folder, ref)


@task(cache_policy=NO_CACHE)
def write_baseline(run: Any, name: str, out: Path) -> PolicyRef:
    """The card of `bench.baselines.<name>`: a hub model at its commit, or a server and the model it offers."""
    from envace.policy.card import write_pointer

    base = run.params.bench.baselines[name]
    ref = PolicyRef(kind="hub", uri=base.uri, revision=base.revision, name=name)
    if base.base_url:
        ref = PolicyRef(kind="endpoint", uri=run.redactor.text(base.base_url), revision=base.model, name=name)
    with publish(out) as scratch:
        ref = write_pointer(scratch, ref)
        settings = ("context", "tool_parser", "reasoning_parser", "thinking", "extra_body")
        write_json(
            scratch / "asked.json", {k: getattr(base, k) for k in settings}
        )  # stale scores follow a change
    run.say(f"baseline {name}: {ref.uri} {ref.revision}")
    return ref


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link costs no space; another file system gets a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _relative(run: Any, path: Path) -> str:
    return path.relative_to(run.root).as_posix()


def work_folder(run: Any, arm: str, seed: int) -> Path:
    """Where training of this arm keeps its checkpoints: named by what shapes it, the step count left out."""
    from envace.engine.launch import work_key

    key = work_key(run.params, arm, seed, run.path("data/staged/train.parquet"), run.path("models/start"))
    return run.state / "train" / key


@task(cache_policy=NO_CACHE)
def run_training(run: Any, arm: str, seed: int, trainer: Callable[..., Any] | None = None) -> Any:
    """Train, or go on where a killed attempt stopped; returns the engine's result.

    `trainer` is `envace.engine.launch.train` or a stand-in with its signature.
    """
    if trainer is None:
        from envace.engine.launch import train as trainer
    out = run.path("runs/train", f"{arm}-{seed}")
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        check_writable(out)
    work = work_folder(run, arm, seed)
    attempt = count_attempt(work)
    run.log.tags({"envace.attempt": attempt, "envace.work": work.name})
    env = {"MLFLOW_TRACKING_URI": os.environ["MLFLOW_TRACKING_URI"], "MLFLOW_RUN_ID": run.log.run_id}
    show = ProgressView(run, f"train-{arm}-{seed}")
    try:
        result = trainer(
            run.params, arm, seed, tasks_file=run.path("data/staged/train.parquet"), start=run.path("models/start"),
            work=work, on_progress=show, env=env,
        )  # fmt: skip
    except UserError:  # what its last steps looked like
        trace_training(run, work, f"{arm}-{seed}")
        raise
    run.log.tags({"envace.resumed_from": result.resumed_from, "envace.trained": str(result.ran).lower()})
    if not result.ran:
        run.say(f"already trained to step {result.steps}")
    return result


def count_attempt(work: Path) -> int:
    """Which attempt at this work folder this is, from 1."""
    work.mkdir(parents=True, exist_ok=True)
    counter = work / "attempts"
    n = int(counter.read_text()) + 1 if counter.is_file() else 1
    counter.write_text(str(n))
    return n


class ProgressView:
    """Shows progress of training in the terminal, in MLflow and as a Prefect progress artifact."""

    def __init__(self, run: Any, key: str):
        self.run, self.key = run, key.lower().replace("_", "-").replace(".", "-")
        self.artifact: Any = None
        self.shown = True

    def __call__(self, event: Any) -> None:
        from envace.engine.progress import line

        if event.phase == "step":
            self.run.metrics(event.metrics, event.step)
        if event.phase in ("step", "template"):
            self.run.say(line(event))
        self._artifact(100.0 * event.step / max(event.steps, 1))

    def _artifact(self, percent: float) -> None:
        """A picture of progress only: a Prefect server that went away must not stop training."""
        import httpx
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.exceptions import PrefectException

        if not self.shown:
            return
        try:
            if self.artifact is None:
                self.artifact = create_progress_artifact(
                    progress=percent, key=self.key, description=self.run.name
                )
            else:
                update_progress_artifact(self.artifact, progress=percent)
        except (httpx.HTTPError, PrefectException, RuntimeError) as e:
            self.shown = False
            self.run.say(f"warning: progress no longer reaches Prefect: {e}")


@task(cache_policy=NO_CACHE)
def write_training(run: Any, arm: str, seed: int, result: Any) -> dict[str, Any]:
    """Metrics and episodes of every step up to the demanded one, from the work folder."""
    from envace.engine.kept import manifest
    from envace.engine.progress import read_steps
    from envace.track.lineage import checkpoint_hash

    work, out = Path(result.work), run.path("runs/train", f"{arm}-{seed}")
    steps = read_steps(work, result.steps)
    if [s["step"] for s in steps] != list(range(1, result.steps + 1)):
        raise DataError(f"{work}/metrics.jsonl lacks steps: it holds {len(steps)} of {result.steps}")
    with publish(out) as scratch:
        with (scratch / "metrics.jsonl").open("w", encoding="utf-8") as handle:
            handle.writelines(json.dumps(s) + "\n" for s in steps)
        _join_episodes(work, scratch / "episodes.jsonl", result.steps)
        write_csv(scratch / "curve.csv", steps, CURVE)
        info = training_info(arm, seed, result, steps, work)
        write_json(scratch / "train.json", info)
        write_json(scratch / "kept.json", manifest(work, result.steps, checkpoint_hash(run.root, "start")))
    trace_training(run, work, f"{arm}-{seed}", result.steps)
    if not result.ran:  # the attempt that trained has them; this run shows them too
        for step in steps:
            run.metrics({k: v for k, v in step.items() if k != "step"}, step["step"])
    return info


def _join_episodes(work: Path, target: Path, last: int) -> None:
    with target.open("wb") as handle:
        for step in range(1, last + 1):
            path = work / "episodes" / f"step_{step:06d}.jsonl"
            if path.is_file():
                handle.write(path.read_bytes())


def training_info(
    arm: str, seed: int, result: Any, steps: list[dict[str, Any]], work: Path
) -> dict[str, Any]:
    """What train.json says."""
    from envace.track.lineage import versions

    rewards = [s["train/reward"] for s in steps if s.get("train/reward") is not None]
    tokens = [s[k] for s in steps for k in s if k == "train/tokens"]
    seconds = sum(s.get("seconds/step", s.get("train/seconds", 0.0)) or 0.0 for s in steps)
    counter = work / "attempts"
    return {
        "arm": arm,
        "seed": seed,
        "steps": result.steps,
        "resumed_from": result.resumed_from,
        "attempts": int(counter.read_text()) if counter.is_file() else 1,
        "seconds": result.seconds or seconds,
        "tokens": sum(tokens) if tokens else None,
        "reward_first": rewards[0] if rewards else None,
        "reward_last": rewards[-1] if rewards else None,
        "work": work.name,
        "versions": versions(),
    }


@task(cache_policy=NO_CACHE)
def export_weights(run: Any, arm: str, seed: int) -> PolicyRef:
    """Merge the checkpoint of the last demanded step into `models/<arm>-<seed>/`."""
    from envace.engine.export import export

    name = f"{arm}-{seed}"
    info = json.loads(run.path("runs/train", name, "train.json").read_text())
    out, began = run.path("models", name), time.time()
    with writable(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        check_writable(out.parent)
    # relative, because the folder's name goes onto the card
    target = Path("models", name) if Path.cwd() == run.root else out
    ref = export(
        run.params,
        work_folder(run, arm, seed),
        run.path("models/start"),
        target,
        name=name,
        step=info["steps"],
    )
    run.say(f"exported step {ref.step} as models/{name} in {time.time() - began:.0f} s, hash {ref.hash[:12]}")
    return ref


@task(cache_policy=NO_CACHE)
def record_model(run: Any, ref: PolicyRef) -> None:
    """Point MLflow at the weights: their hash and folder as tags, no bytes."""
    lineage_of_model(run, ref)
