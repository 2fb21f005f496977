"""Reads what the stages left on disk, as far as it is there.

Flows in: the project's folder and the parameters, which say which files this run should have. Flows out:
`Results`, with the names of absent files in `missing` and of unreadable ones in `problems`.
Invariant: only files the parameters name are read, so left-overs of an earlier size never reach the report;
an absent or broken file is reported and never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from envace.bench.fidelity.scores import Score
from envace.config import Params
from envace.data.store import read_tasks
from envace.errors import UserError
from envace.report.estimates import number
from envace.report.manifest import MANIFEST, read_manifest
from envace.report.results import EvalRun, FidelityRun, Results, TrainRun
from envace.report.study import START, trained_name
from envace.types import JSON, Episode, PolicyRef, SampleRecord, ScoreRecord, Source, Task, from_json

Object = dict[str, JSON]
T = TypeVar("T")


class Reader:
    """Reads below one folder and remembers what was absent or broken."""

    def __init__(self, root: Path):
        self.root = root
        self.missing: list[str] = []
        self.problems: list[str] = []

    def object(self, name: str) -> Object:
        """A JSON object; {} when absent or broken."""
        text = "".join(self._read(name))
        try:
            data = json.loads(text or "{}")
        except ValueError as e:
            self.problems.append(f"{name}: not JSON ({e})")
            return {}
        if isinstance(data, dict):
            return data
        self.problems.append(f"{name}: holds no object")
        return {}

    def lines(self, name: str) -> Iterator[Object]:
        """The objects of a JSON-lines file, one at a time; broken lines are counted as one problem."""
        bad = 0
        for line in filter(str.strip, self._read(name)):
            try:
                data = json.loads(line)
            except ValueError:
                data = None
            if isinstance(data, dict):
                yield data
            else:
                bad += 1
        if bad:
            self.problems.append(f"{name}: {bad} broken lines left out")

    def records(self, name: str, cls: type[T], items: Iterable[JSON]) -> tuple[T, ...]:
        """Those of `items` that fit the record type; the others are counted as one problem."""
        good, bad, why = [], 0, ""
        for item in items:
            try:
                good.append(from_json(cls, item))
            except ValueError as e:  # pydantic.ValidationError
                bad, why = bad + 1, why or " ".join(str(e).splitlines()[1:2])
        if bad:
            self.problems.append(f"{name}: {bad} entries are no {cls.__name__} {why}".rstrip())
        return tuple(good)

    def _read(self, name: str) -> Iterator[str]:
        path = self.root / name
        if not path.is_file():
            self.missing.append(name)
            return
        try:
            with path.open(encoding="utf-8", errors="replace") as f:
                yield from f
        except OSError as e:
            self.problems.append(f"{name}: {e.strerror}")


def load_results(root: Path, params: Params) -> Results:
    """Everything the parameters say a run leaves behind, read as far as possible. Never raises."""
    reader, d = Reader(Path(root)), params.dynamics
    tasks = _tasks(reader, params)
    manifest = reader.object(MANIFEST)
    policies = dict.fromkeys(["start", *params.train.runs, *params.eval.policies, *params.bench.policies])
    cards = {p: reader.object(f"models/{p}/card.json") for p in policies}
    refs = {p: reader.records(f"models/{p}/card.json", PolicyRef, [c] if c else []) for p, c in cards.items()}
    curve = [(run, step, b) for run in d.runs for step in d.steps for b in d.benchmarks]
    results = Results(
        manifest=read_manifest(manifest, reader.problems) if manifest else None,
        cards={p: ref[0] for p, ref in refs.items() if ref},
        train=tuple(_train(reader, name) for name in params.train.runs),
        evals=tuple(
            _eval(reader, params, p, b) for p in params.eval.policies for b in params.eval.benchmarks
        ),
        tts=tuple(_tts(reader, params.tts.policy, point) for point in params.tts.points),
        bench=tuple(
            _scored(reader, "bench", f"{p}-{b}", policy=p, benchmark=b)
            for p in params.bench.policies
            for b in params.bench.benchmarks
        ),
        dynamics=tuple(
            _scored(reader, "dynamics", f"{run}-{step}-{b}", policy=run, benchmark=b, n=step)
            for run, step, b in curve
        ),
        fidelity=tuple(_fidelity(reader, p) for p in params.fidelity.policies),
        tasks={t.id: t for split in tasks.values() for t in split},
        example=max((t for t in tasks.get("held", []) if t.reference), key=_telling, default=None),
    )
    return replace(results, missing=tuple(reader.missing), problems=tuple(reader.problems))


def _tasks(reader: Reader, params: Params) -> dict[str, list[Task]]:
    """Staged tasks by split: they hold the words of the checklist items that verdicts point at."""
    found = {}
    more = ("validation", "unseen", "files")
    played = {b.removeprefix("desk-") for b in params.eval.benchmarks}
    for split in ("train", "held", *(s for s in more if s in played)):
        name = f"data/staged/{split}.parquet"
        if not (reader.root / name).is_file():
            reader.missing.append(name)
            continue
        try:
            found[split] = read_tasks(reader.root / name)
        except UserError as e:
            reader.problems.append(f"{name}: {e}")
    return found


def _telling(task: Task) -> tuple[int, int]:
    """What makes a task show much in little: more turns first, then some calls but not the most."""
    return min(task.n_turns, 2), -abs(sum(len(m.calls) for m in task.reference) - 3)


def _train(reader: Reader, name: str) -> TrainRun:
    folder = f"runs/train/{name}"
    steps = {s["step"]: s for s in reader.lines(f"{folder}/metrics.jsonl") if isinstance(s.get("step"), int)}
    best, rank = None, (-1, -1.0, -1, -1)
    for line in reader.lines(f"{folder}/episodes.jsonl"):
        if (own := _worth_showing(line)) > rank:
            best, rank = line, own
    shown = reader.records(f"{folder}/episodes.jsonl", Episode, [best] if best else [])
    return TrainRun(
        name=name,
        steps=tuple(steps[k] for k in sorted(steps)),  # a step repeated after a resume counts as it was last
        info=reader.object(f"{folder}/train.json"),
        shown=shown[0] if shown else None,
        shown_step=max(rank[0], 0),
    )


def _worth_showing(episode: Object) -> tuple[int, float, int, int]:
    """Step (ids say `s16p4-1`), reward, rehearsed responses, length: the more the better, in this order."""
    step = re.match(r"s(\d+)p", str(episode.get("id")))
    reward = number(episode.get("reward"))
    rehearsed = sum(o.get("source") == Source.REHEARSAL for o in _objects(episode, "observations"))
    return (
        int(step[1]) if step else 0,
        -1.0 if reward is None else reward,
        rehearsed,
        len(_objects(episode, "messages")),
    )


def _objects(data: Object, key: str) -> list[Object]:
    items = data.get(key)
    return [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []


def _eval(reader: Reader, params: Params, policy: str, benchmark: str) -> EvalRun:
    run = _scored(reader, "evaluate", f"{policy}-{benchmark}", policy=policy, benchmark=benchmark)
    if policy not in (START, trained_name(params)) or benchmark != params.eval.first:
        return run
    name = f"results/evaluate/{run.name}/episodes.jsonl"
    return replace(run, episodes=reader.records(name, Episode, map(_light, reader.lines(name))))


def _light(episode: Object) -> Object:
    """An episode without the ids of its prompts, which no page shows."""
    for generation in _objects(episode, "generations"):
        generation |= {"prompt_ids": [], "logprobs": []}
    return episode


def _tts(reader: Reader, policy: str, point: str) -> EvalRun:
    mode, _, n = point.rpartition("-")
    run = _scored(reader, "tts", point, policy=policy, mode=mode, n=int(n))
    counts = run.info.pop("rehearsal", None)
    memories: dict[str, str] = {}
    for line in reader.lines(f"results/tts/{point}/attempts.jsonl") if run.n else ():
        if isinstance(memory := line.get("memory"), dict):
            memories.setdefault(str(line.get("task", "")), str(memory.get("text", "")))
    found = counts.items() if isinstance(counts, dict) else ()
    return replace(
        run, memories=memories, rehearsal={k: v for k, raw in found if (v := number(raw)) is not None}
    )


def _scored(
    reader: Reader, stage: str, name: str, *, policy: str, benchmark: str = "desk", mode: str = "", n: int = 0
) -> EvalRun:
    """scores.json and samples.jsonl of a folder of results."""
    files = [f"results/{stage}/{name}/{file}" for file in ("scores.json", "samples.jsonl")]
    info = reader.object(files[0])
    scores = info.pop("scores", None)
    return EvalRun(
        name=name,
        policy=policy,
        benchmark=benchmark,
        mode=mode,
        n=n,
        scores=reader.records(files[0], ScoreRecord, scores if isinstance(scores, list) else []),
        samples=reader.records(files[1], SampleRecord, reader.lines(files[1])),
        info=info,
    )


def _fidelity(reader: Reader, policy: str) -> FidelityRun:
    folder = f"results/fidelity/{policy}"
    info = reader.object(f"{folder}/scores.json")
    info.pop("scores", None)  # the values again, for `dvc metrics` and MLflow
    spread = info.pop("spread", None)
    found = spread.items() if isinstance(spread, dict) else ()
    return FidelityRun(
        policy=policy,
        scores={k: s for k, v in found for s in reader.records(f"{folder}/scores.json", Score, [v])},
        calls=tuple(
            {k: v for k, v in row.items() if k != "shown"} for row in reader.lines(f"{folder}/calls.jsonl")
        ),
        plays=tuple(reader.lines(f"{folder}/plays.jsonl")),
        info=info,
    )
