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
from collections.abc import Iterator, Sequence
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
from envace.types import JSON, Episode, SampleRecord, ScoreRecord
from tasks.bench import Bench, copy_raw, keep_counts, run_harness
from tasks.evaluation import SPLITS, gate, play_benchmark
from tasks.run import Run
from tasks.summary import curve_name
from tasks.tracking import lineage_of_model


class Point:
    """What one step scored. Not a dataclass: Prefect would walk every token id of one it is handed."""

    def __init__(
        self,
        scores: list[ScoreRecord],
        samples: list[SampleRecord],
        seconds: float,
        episodes: Sequence[Episode] = (),
        bench: Bench | None = None,
    ):
        self.scores, self.samples, self.seconds = scores, samples, seconds
        self.episodes, self.bench = episodes, bench


@task(cache_policy=NO_CACHE)
def evaluate_step(run: Run, training: str, step: int, benchmark: str) -> Point:
    """Score the weights that `training` had after `step` updates. Raises UserError when they were
    not kept.
    """
    cut, name = run.with_params(shortened(run.params)), f"{training}@{step}"
    with weights(run, training, step, benchmark) as folder:
        lineage_of_model(run, read_card(folder))
        if benchmark in SPLITS:
            done = gate.fn(cut, play_benchmark.fn(cut, name, benchmark, folder, played_as=training))
            return Point(done.scores, done.samples, done.seconds, done.episodes)
        bench = run_harness.fn(cut, name, benchmark, folder)
        return Point(bench.scores, bench.samples, bench.seconds, bench=bench)


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
    out, began = run.state / "dynamics" / f"{training}-{step}-{benchmark}", time.time()
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        ref = export(run.params, work, run.path("models/start"), out, name=f"{training}-{step}", step=step)
        run.say(f"step {step} of {training} exported in {time.time() - began:.0f} s, hash {ref.hash[:12]}")
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
def write_point(run: Run, point: Point, training: str, step: int, benchmark: str) -> None:
    """scores.json, samples.jsonl, raw/ and metrics.json; each score to MLflow at the training's step."""
    name = f"{training}-{step}-{benchmark}"
    with publish(run.path("results/dynamics", name)) as scratch:
        about = {"training": training, "step": step, "seconds": point.seconds}
        write_json(scratch / "scores.json", {"scores": point.scores, **about})
        write_jsonl(scratch / "samples.jsonl", point.samples)
        (scratch / "raw").mkdir()
        write_jsonl(scratch / "raw/episodes.jsonl", point.episodes)
        if point.bench:
            copy_raw(point.bench, scratch / "raw")
        values = {curve_name(s): s.score for s in point.scores}
        write_json(scratch / "metrics.json", nested(("dynamics", training, str(step)), values))
    if point.bench:
        keep_counts(run, point.bench, benchmark)
    for s in point.scores:
        bounds = {"": s.score, "_low": s.low, "_high": s.high}
        values = {f"dynamics/{curve_name(s)}{end}": v for end, v in bounds.items() if v is not None}
        run.metrics(values, step)
    first = point.scores[0]
    run.say(f"step {step}: {curve_name(first)} {'withheld' if first.score is None else f'{first.score:.3f}'}")
