"""The curve of training: the weights of one kept step, exported for as long as they are asked, and what they
score.

Flows in: `runs/train/<run>/kept.json`, the training's work folder, parameters. Flows out:
`results/dynamics/<run>-<step>-<benchmark>/`.
Invariant: a point is of the very weights that training kept, on the same tasks at every step; a benchmark
runs as in the stages `evaluate` and `bench`, with `dynamics.limit` and `dynamics.trials`.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.bench.summary import nested
from envace.config import Params
from envace.engine import checkpoints
from envace.errors import DataError
from envace.io.files import publish, write_json, write_jsonl
from envace.policy.card import read_card
from envace.types import JSON
from tasks.artifacts import log_scored, tag_policy
from tasks.bench import Bench, copy_raw, keep_counts, run_harness
from tasks.evaluation import SPLITS, Outcome, gate, play_benchmark
from tasks.run import Run
from tasks.summary import curve_name, shown, with_bounds


@task(cache_policy=NO_CACHE)
def evaluate_step(run: Run, training: str, step: int, benchmark: str) -> Outcome | Bench:
    """Score the weights that `training` had after `step` updates. Raises UserError when they were
    not kept.
    """
    cut, name = run.with_params(shortened(run.params)), f"{training}@{step}"
    with weights(run, training, step, benchmark) as folder:
        tag_policy(run, read_card(folder))
        if benchmark in SPLITS:
            return gate.fn(cut, play_benchmark.fn(cut, name, benchmark, folder, played_as=training))
        return run_harness.fn(cut, name, benchmark, folder)


def shortened(p: Params) -> Params:
    """Parameters under which every benchmark asks `dynamics.limit` tasks `dynamics.trials` times."""
    size = {"limit": p.dynamics.limit, "trials": p.dynamics.trials}
    options = {name: {k: v for k, v in own.items() if k not in size} for name, own in p.bench.options.items()}
    bench = dataclasses.replace(p.bench, options=options, **size)
    return dataclasses.replace(p, bench=bench, eval=dataclasses.replace(p.eval, **size))


@contextmanager
def weights(run: Run, training: str, step: int, benchmark: str) -> Iterator[Path]:
    """The policy's folder while it is needed: an export that is removed again, or the start policy for step
    0.
    """
    from envace.engine.export import export

    if not step:
        yield run.path("models/start")
        return
    said = _manifest(run.path("runs/train", training, "kept.json"))
    work = run.state / "train" / said["work"]
    checkpoints.require_kept(said, work, training, step)
    out, began = run.state / "dynamics" / f"{training}-{step}-{benchmark}", time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        ref = export(run.params, work, run.path("models/start"), out, name=f"{training}-{step}", step=step)
        took = time.monotonic() - began
        run.say(f"step {step} of {training} exported in {took:.0f} s, hash {ref.hash[:12]}")
        yield out
    finally:
        for folder in (out, out.with_name(out.name + ".part")):
            shutil.rmtree(folder, ignore_errors=True)


def _manifest(path: Path) -> dict[str, JSON]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return {"work": str(said["work"]), "steps": dict(said["steps"])}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(f"{path} does not say which steps were kept ({e}); run the train stage again") from e


@task(cache_policy=NO_CACHE)
def write_point(run: Run, point: Outcome | Bench, training: str, step: int, benchmark: str) -> None:
    """scores.json, samples.jsonl, raw/ and metrics.json; each score to MLflow at the training's step."""
    out = run.path("results/dynamics", f"{training}-{step}-{benchmark}")
    about = {"training": training, "step": step, "seconds": point.seconds}
    with publish(out) as scratch:
        write_json(scratch / "scores.json", {"scores": point.scores, **about})
        write_jsonl(scratch / "samples.jsonl", point.samples)
        (scratch / "raw").mkdir()
        write_jsonl(scratch / "raw/episodes.jsonl", [] if isinstance(point, Bench) else point.episodes)
        if isinstance(point, Bench):
            copy_raw(point, scratch / "raw")
        values = {curve_name(s): s.score for s in point.scores}
        write_json(scratch / "metrics.json", nested(("dynamics", training, str(step)), values))
    if isinstance(point, Bench):
        keep_counts(run, point, benchmark)
    for s in point.scores:
        run.metrics(with_bounds(f"dynamics/{curve_name(s)}", s), step)
    log_scored(run, out, point.samples)
    first = point.scores[0]
    run.say(f"step {step}: {curve_name(first)} {shown(first.score)}")
