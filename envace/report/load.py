"""Reads what the stages left on disk, as far as it is there.

Flows in: the project's folder and the parameters, which say which files this run should have. Flows out:
`Results`, with the names of absent files in `missing` and of unreadable ones in `problems`.
Invariant: only files the parameters name are read, so left-overs of an earlier size never reach the report;
an absent or broken file is reported and never raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from envace.bench.fidelity.scores import Score
from envace.config import Params
from envace.report.names import START, trained_name
from envace.report.reader import Reader, number, objects
from envace.report.results import EvalRun, FidelityRun, Results, TrainRun
from envace.report.staged import MANIFEST, read_staged
from envace.types import JSON, Episode, PolicyRef, SampleRecord, ScoreRecord, Source, Task, replace


def load_results(root: Path, params: Params) -> Results:
    """Everything the parameters say a run leaves behind, read as far as possible. Never raises."""
    reader = Reader(Path(root))
    runs = params.train.runs
    tasks = _tasks(reader, params)
    manifest = reader.json(MANIFEST)
    results = Results(
        manifest=manifest,
        staged=read_staged(manifest, reader.problems) if manifest else None,
        cards=_cards(
            reader, list(dict.fromkeys(["start", *runs, *params.eval.policies, *params.bench.policies]))
        ),
        train=tuple(_train(reader, name) for name in runs),
        evals=tuple(
            _eval(reader, params, p, b) for p in params.eval.policies for b in params.eval.benchmarks
        ),
        tts=tuple(_tts(reader, params.tts.policy, point) for point in params.tts.points),
        bench=tuple(_bench(reader, p, b) for p in params.bench.policies for b in params.bench.benchmarks),
        dynamics=tuple(_dynamics(reader, params)),
        fidelity=tuple(_fidelity(reader, p) for p in params.fidelity.policies),
        tasks={t.id: t for split in tasks.values() for t in split},
        example=_example(tasks.get("held", [])),
    )
    return replace(results, missing=tuple(reader.missing), problems=tuple(reader.problems))


def _cards(reader: Reader, names: list[str]) -> dict[str, PolicyRef]:
    found = {}
    for name in names:
        card = reader.json(f"models/{name}/card.json")
        if card and (refs := reader.records(f"models/{name}/card.json", PolicyRef, [card])):
            found[name] = refs[0]
    return found


def _tasks(reader: Reader, params: Params) -> dict[str, list[Task]]:
    """Staged tasks by split: they hold the words of the checklist items that verdicts point at."""
    from envace.data.store import read_tasks
    from envace.errors import UserError

    found = {}
    more = {"unseen": "desk-unseen", "files": "files"}  # split -> the benchmark that needs it
    for split in ("train", "held", *(s for s, b in more.items() if b in params.eval.benchmarks)):
        name = f"data/staged/{split}.parquet"
        if not (reader.root / name).is_file():
            reader.missing.append(name)
            continue
        try:
            found[split] = read_tasks(reader.root / name)
        except UserError as e:
            reader.problems.append(f"{name}: {e}")
    return found


def _example(tasks: list[Task]) -> Task | None:
    """A task that shows much in little: more turns first, then some calls but not the most, the earliest of
    equals."""
    with_dialogue = [t for t in tasks if t.reference]

    def shows(task: Task) -> tuple[int, int]:
        calls = sum(len(m.calls) for m in task.reference)
        return min(task.n_turns, 2), -abs(calls - 3)

    return max(with_dialogue, key=shows, default=None)


def _train(reader: Reader, name: str) -> TrainRun:
    folder = f"runs/train/{name}"
    by_step = {
        s["step"]: s for s in reader.lines(f"{folder}/metrics.jsonl") if isinstance(s.get("step"), int)
    }
    steps = tuple(by_step[k] for k in sorted(by_step))  # a step repeated after a resume counts as it was last
    order = _steps_in_order(reader.root / folder / "episodes.jsonl", steps)
    best, key = None, (-1, -1.0, -1, -1)
    for k, line in enumerate(reader.lines(f"{folder}/episodes.jsonl")):
        step, data = _unwrap(line)
        step = order[k] if order and step is None else step or 0
        if (own := _appeal(step, data)) > key:
            best, key = data, own
    shown = reader.records(f"{folder}/episodes.jsonl", Episode, [best] if best else [])
    return TrainRun(
        name=name,
        steps=steps,
        info=reader.json(f"{folder}/train.json"),
        shown=shown[0] if shown else None,
        shown_step=max(key[0], 0),
    )


def _steps_in_order(path: Path, steps: tuple[dict[str, JSON], ...]) -> list[int]:
    """The optimizer step of each line of an episodes file, which holds the steps one after the other.

    Empty when the metrics' episode counts do not add up to the number of lines.
    """
    order = [s["step"] for s in steps for _ in range(int(number(s.get("train/episodes")) or 0))]
    if not path.is_file():
        return []
    with path.open("rb") as f:
        lines = sum(1 for line in f if line.strip())
    return order if len(order) == lines else []


def _unwrap(line: dict[str, JSON]) -> tuple[int | None, dict[str, JSON]]:
    """(optimizer step where one is written down, episode)."""
    data = line.get("episode") if isinstance(line.get("episode"), dict) else line
    if isinstance(line.get("step"), int):
        return line["step"], data
    return None, data


def _appeal(step: int, data: dict[str, JSON]) -> tuple[int, float, int, int]:
    """What makes an episode worth showing: late, well rewarded, rehearsed, long."""
    rehearsed = sum(o.get("source") == Source.REHEARSAL for o in objects(data, "observations"))
    reward = number(data.get("reward"))
    return step, -1.0 if reward is None else reward, rehearsed, len(objects(data, "messages"))


def _eval(reader: Reader, params: Params, policy: str, benchmark: str) -> EvalRun:
    folder = f"results/evaluate/{policy}-{benchmark}"
    scores, samples, info = _scores(reader, folder)
    episodes: tuple[Episode, ...] = ()
    if policy in (START, trained_name(params)) and benchmark == params.eval.first:
        lines = (_light(_unwrap(line)[1]) for line in reader.lines(f"{folder}/episodes.jsonl"))
        episodes = reader.records(f"{folder}/episodes.jsonl", Episode, lines)
    return EvalRun(
        name=f"{policy}-{benchmark}",
        policy=policy,
        benchmark=benchmark,
        scores=scores,
        samples=samples,
        episodes=episodes,
        info=info,
    )


def _bench(reader: Reader, policy: str, benchmark: str) -> EvalRun:
    scores, samples, info = _scores(reader, f"results/bench/{policy}-{benchmark}")
    return EvalRun(
        name=f"{policy}-{benchmark}",
        policy=policy,
        benchmark=benchmark,
        scores=scores,
        samples=samples,
        info=info,
    )


def _dynamics(reader: Reader, params: Params) -> Iterator[EvalRun]:
    d = params.dynamics
    for run in d.runs:
        for step in d.steps:
            for benchmark in d.benchmarks:
                name = f"{run}-{step}-{benchmark}"
                scores, samples, info = _scores(reader, f"results/dynamics/{name}")
                yield EvalRun(
                    name=name,
                    policy=run,
                    benchmark=benchmark,
                    n=step,
                    scores=scores,
                    samples=samples,
                    info=info,
                )


def _light(data: dict[str, JSON]) -> dict[str, JSON]:
    """An episode without the ids of its prompts, which no page shows."""
    for generation in objects(data, "generations"):
        generation |= {"prompt_ids": [], "logprobs": []}
    return data


def _tts(reader: Reader, policy: str, point: str) -> EvalRun:
    mode, _, n = point.rpartition("-")
    folder = f"results/tts/{point}"
    scores, samples, info = _scores(reader, folder)
    counts = info.pop("rehearsal", None)
    memories: dict[str, str] = {}
    for line in reader.lines(f"{folder}/attempts.jsonl") if int(n) else ():
        if isinstance(line.get("memory"), dict):
            memories.setdefault(str(line.get("task", "")), str(line["memory"].get("text", "")))
    counts = counts if isinstance(counts, dict) else {}
    return EvalRun(
        name=point,
        policy=policy,
        mode=mode,
        n=int(n),
        scores=scores,
        samples=samples,
        info=info,
        memories=memories,
        rehearsal={k: v for k, raw in counts.items() if (v := number(raw)) is not None},
    )


def _scores(
    reader: Reader, folder: str
) -> tuple[tuple[ScoreRecord, ...], tuple[SampleRecord, ...], dict[str, JSON]]:
    info = reader.json(f"{folder}/scores.json")
    scores = reader.records(f"{folder}/scores.json", ScoreRecord, info.pop("scores", None) or [])
    samples = reader.records(f"{folder}/samples.jsonl", SampleRecord, reader.lines(f"{folder}/samples.jsonl"))
    return scores, samples, info


def _fidelity(reader: Reader, policy: str) -> FidelityRun:
    folder = f"results/fidelity/{policy}"
    info = reader.json(f"{folder}/scores.json")
    info.pop("scores", None)  # the values again, for `dvc metrics` and MLflow
    spread = info.pop("spread", None)
    spread = spread if isinstance(spread, dict) else {}
    kept = {k: s for k, v in spread.items() for s in reader.records(f"{folder}/scores.json", Score, [v])}
    calls = ({k: v for k, v in row.items() if k != "shown"} for row in reader.lines(f"{folder}/calls.jsonl"))
    return FidelityRun(
        policy=policy,
        scores=kept,
        calls=tuple(calls),
        plays=tuple(reader.lines(f"{folder}/plays.jsonl")),
        info=info,
    )
