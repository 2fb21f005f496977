"""Reads what the stages left on disk, as far as it is there.

Flows in: the project's folder and the parameters, which say which files this run should have. Flows out:
`Results`, with the names of absent files in `missing` and of unreadable ones in `problems`.
Invariant: only files the parameters name are read, so left-overs of an earlier size never reach the report;
an absent or broken file is reported and never raises.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envace.params import Params
from envace.types import (
    JSON,
    Answer,
    Episode,
    PolicyRef,
    SampleRecord,
    ScoreRecord,
    Source,
    Task,
    from_json,
    replace,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeNote:
    """What the tables need of one training episode; the token ids stay on disk."""

    step: int
    task_id: str
    reward: float | None
    stop: str
    answers: dict[tuple[int, str], str]  # (turn, item id) -> answer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    name: str  # <arm>-<seed>
    steps: tuple[dict[str, JSON], ...] = ()  # one a optimizer step, as in metrics.jsonl
    info: dict[str, JSON] = field(default_factory=dict)  # train.json
    notes: tuple[EpisodeNote, ...] = ()
    shown: Episode | None = None  # the episode the report shows
    shown_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRun:
    """Of one evaluation, or of one test-time-scaling cell (`name` says which)."""

    name: str
    policy: str
    benchmark: str = "desk"
    mode: str = ""  # parallel | sequential
    n: int = 0
    scores: tuple[ScoreRecord, ...] = ()
    samples: tuple[SampleRecord, ...] = ()
    episodes: tuple[Episode, ...] = ()
    info: dict[str, JSON] = field(default_factory=dict)  # scores.json without its scores
    rehearsal_tokens: int | None = None  # read and written in private attempts, all samples together
    memories: dict[str, str] = field(default_factory=dict)  # task -> what its first committed run was told


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRun:
    policy: str
    scores: dict[str, float] = field(default_factory=dict)
    calls: tuple[dict[str, JSON], ...] = ()
    info: dict[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    train: tuple[TrainRun, ...] = ()
    evals: tuple[EvalRun, ...] = ()
    tts: tuple[EvalRun, ...] = ()
    fidelity: tuple[FidelityRun, ...] = ()
    cards: dict[str, PolicyRef] = field(default_factory=dict)
    manifest: dict[str, JSON] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(
        default_factory=dict
    )  # the last run of each stage on this machine
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Reader:
    """Reads below one folder and remembers what was absent or broken."""

    def __init__(self, root: Path):
        self.root = root
        self.missing: list[str] = []
        self.problems: list[str] = []

    def json(self, name: str) -> dict[str, JSON]:
        """A JSON object; {} when absent or broken."""
        text = self._text(name)
        if text is None:
            return {}
        try:
            data = json.loads(text)
        except ValueError as e:
            self.problems.append(f"{name}: not JSON ({e})")
            return {}
        if not isinstance(data, dict):
            self.problems.append(f"{name}: holds no object")
            return {}
        return data

    def lines(self, name: str) -> Iterator[dict[str, JSON]]:
        """The objects of a JSON-lines file, one at a time; broken lines are counted as one problem."""
        path, bad = self.root / name, 0
        if not path.is_file():
            self.missing.append(name)
            return
        try:
            with path.open(encoding="utf-8", errors="replace") as f:
                for line in filter(str.strip, f):
                    try:
                        data = json.loads(line)
                    except ValueError:
                        data = None
                    if isinstance(data, dict):
                        yield data
                    else:
                        bad += 1
        except OSError as e:
            self.problems.append(f"{name}: {e.strerror}")
        if bad:
            self.problems.append(f"{name}: {bad} broken lines left out")

    def records(self, name: str, cls: type, items: Any) -> tuple:
        """Those of `items` that fit the record type; the others are counted as one problem."""
        good, bad, why = [], 0, ""
        for item in items:
            try:
                good.append(from_json(cls, item))
            except ValueError as e:  # pydantic.ValidationError
                bad, why = bad + 1, why or str(e).splitlines()[1:2]
        if bad:
            self.problems.append(f"{name}: {bad} entries are no {cls.__name__} {' '.join(why)}".rstrip())
        return tuple(good)

    def _text(self, name: str) -> str | None:
        path = self.root / name
        if not path.is_file():
            self.missing.append(name)
            return None
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as e:
            self.problems.append(f"{name}: {e.strerror}")
            return None


def load_results(root: Path, params: Params) -> Results:
    """Everything the parameters say a run leaves behind, read as far as possible. Never raises."""
    reader = Reader(Path(root))
    runs = [f"{arm}-{seed}" for arm in params.train.arms for seed in params.train.seeds]
    results = Results(
        manifest=reader.json("data/staged/manifest.json"),
        cards=_cards(reader, ["start", *runs]),
        train=tuple(_train(reader, name) for name in runs),
        evals=tuple(_eval(reader, p, b) for p in params.eval.policies for b in params.eval.benchmarks),
        tts=tuple(
            _tts(reader, params.tts.policy, m, n) for m in params.tts.modes for n in params.tts.budgets
        ),
        fidelity=tuple(_fidelity(reader, p) for p in params.fidelity.policies),
        tasks=_tasks(reader),
    )
    return _with_gaps(results, reader)


def _with_gaps(results: Results, reader: Reader) -> Results:
    return replace(results, missing=tuple(reader.missing), problems=tuple(reader.problems))


def _cards(reader: Reader, names: list[str]) -> dict[str, PolicyRef]:
    found = {}
    for name in names:
        card = reader.json(f"models/{name}/card.json")
        if card and (refs := reader.records(f"models/{name}/card.json", PolicyRef, [card])):
            found[name] = refs[0]
    return found


def _tasks(reader: Reader) -> dict[str, Task]:
    """Staged tasks by id: they hold the words of the checklist items that verdicts point at."""
    tasks: dict[str, Task] = {}
    for split in ("train", "held"):
        name = f"data/staged/{split}.parquet"
        if not (reader.root / name).is_file():
            reader.missing.append(name)
            continue
        from envace.data.store import read_tasks
        from envace.errors import UserError

        try:
            tasks.update({t.id: t for t in read_tasks(reader.root / name)})
        except UserError as e:
            reader.problems.append(f"{name}: {e}")
    return tasks


def _train(reader: Reader, name: str) -> TrainRun:
    folder = f"runs/train/{name}"
    by_step = {
        s["step"]: s for s in reader.lines(f"{folder}/metrics.jsonl") if isinstance(s.get("step"), int)
    }
    steps = tuple(by_step[k] for k in sorted(by_step))  # a step repeated after a resume counts as it was last
    order = _steps_in_order(reader.root / folder / "episodes.jsonl", steps)
    notes, best, key = [], None, (-1, -1.0, -1, -1)
    for k, line in enumerate(reader.lines(f"{folder}/episodes.jsonl")):
        step, data = _unwrap(line)
        step = order[k] if order and step is None else step or 0
        notes.append(_note(step, data))
        if (own := _appeal(step, data)) > key:
            best, key = data, own
    shown = reader.records(f"{folder}/episodes.jsonl", Episode, [best] if best else [])
    return TrainRun(
        name=name, steps=steps, info=reader.json(f"{folder}/train.json"), notes=tuple(notes),
        shown=shown[0] if shown else None, shown_step=max(key[0], 0),
    )  # fmt: skip


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


def _objects(data: dict[str, JSON], key: str) -> list[dict[str, JSON]]:
    items = data.get(key)
    return [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []


def _note(step: int, data: dict[str, JSON]) -> EpisodeNote:
    verdicts = _objects(data, "verdicts")
    return EpisodeNote(
        step=step, task_id=str(data.get("task_id", "")), reward=number(data.get("reward")), stop=str(data.get("stop", "")),
        answers={(int(number(v.get("turn")) or 0), str(v.get("item_id", ""))): str(v.get("answer", Answer.UNSCORED)) for v in verdicts},
    )  # fmt: skip


def _appeal(step: int, data: dict[str, JSON]) -> tuple[int, float, int, int]:
    """What makes an episode worth showing: late, well rewarded, rehearsed, long."""
    observations = _objects(data, "observations")
    rehearsed = sum(o.get("source") == Source.REHEARSAL for o in observations)
    reward = number(data.get("reward"))
    return step, -1.0 if reward is None else reward, rehearsed, len(_objects(data, "messages"))


def _eval(reader: Reader, policy: str, benchmark: str) -> EvalRun:
    folder = f"results/evaluate/{policy}-{benchmark}"
    scores, samples, info = _scores(reader, folder)
    lines = (_unwrap(line)[1] for line in reader.lines(f"{folder}/episodes.jsonl"))
    episodes = reader.records(f"{folder}/episodes.jsonl", Episode, lines) if benchmark == "desk" else ()
    return EvalRun(
        name=f"{policy}-{benchmark}",
        policy=policy,
        benchmark=benchmark,
        scores=scores,
        samples=samples,
        episodes=episodes,
        info=info,
    )


def _tts(reader: Reader, policy: str, mode: str, n: int) -> EvalRun:
    folder = f"results/tts/{mode}-{n}"
    scores, samples, info = _scores(reader, folder)
    tokens, memories = (0 if scores or samples else None), {}  # the control rehearses nothing
    if n:
        tokens = None
        for line in reader.lines(f"{folder}/attempts.jsonl"):
            tokens = (tokens or 0) + _attempt_tokens(line)
            if isinstance(line.get("memory"), dict):
                memories.setdefault(str(line.get("task", "")), str(line["memory"].get("text", "")))
    return EvalRun(
        name=f"{mode}-{n}",
        policy=policy,
        mode=mode,
        n=n,
        scores=scores,
        samples=samples,
        info=info,
        rehearsal_tokens=tokens,
        memories=memories,
    )


def _attempt_tokens(line: dict[str, JSON]) -> int:
    data = line.get("attempt") if isinstance(line.get("attempt"), dict) else line
    return int(number(data.get("tokens")) or 0)


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
    raw = info.pop("scores", {})
    if isinstance(raw, list):  # ScoreRecords
        raw = {s.metric: s.score for s in reader.records(f"{folder}/scores.json", ScoreRecord, raw)}
    scores = (
        {str(k): float(v) for k, v in raw.items() if number(v) is not None} if isinstance(raw, dict) else {}
    )
    return FidelityRun(
        policy=policy, scores=scores, calls=tuple(reader.lines(f"{folder}/calls.jsonl")), info=info
    )


def number(value: Any) -> float | None:
    """A finite number as float, anything else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
