"""Asking policies: committed executions and what they score.

Flows in: a served policy and held-out tasks. Flows out: `results/...` with scores, samples, episodes.
Invariant: a headline that the completeness gate withheld fails the stage; its files are not published.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.bench.summary import nested
from envace.errors import StageFailed, UserError
from envace.io.files import publish, write_json, write_jsonl
from envace.judge.counts import judge_metrics
from envace.track.lineage import file_hash, versions
from envace.types import JSON, Episode, Memory, SampleRecord, ScoreRecord, Task
from tasks.artifacts import log_scored
from tasks.rows import read_split, split_file
from tasks.run import Run
from tasks.serving import Served, open_policy
from tasks.summary import interval, with_bounds
from tasks.tracking import traced

METRICS = ("success", "checklist", "steps", "calls", "tokens")
SPLITS = {"desk": "held", "desk-validation": "validation", "desk-unseen": "unseen", "files": "files"}
"""benchmark -> the staged split it plays in the true world"""


class Outcome:
    """What an evaluation leaves. Not a dataclass: Prefect would walk every token id of one it is handed."""

    def __init__(
        self,
        scores: list[ScoreRecord],
        samples: list[SampleRecord],
        episodes: list[Episode],
        attempts: list[dict[str, JSON]],
        seconds: float,
        notes: dict[str, JSON] | None = None,
    ):
        self.scores, self.samples, self.episodes, self.attempts = scores, samples, episodes, attempts
        self.seconds, self.notes = seconds, notes or {}  # notes: written beside the scores


def choose(tasks: Sequence[Task], limit: int, seed: int) -> list[Task]:
    """`limit` tasks by hash, in the order they came; 0 is all. The same for every policy."""
    if not limit or limit >= len(tasks):
        return list(tasks)
    ranked = sorted(tasks, key=lambda t: hashlib.sha256(f"{seed}/{t.id}".encode()).hexdigest())
    kept = {t.id for t in ranked[:limit]}
    return [t for t in tasks if t.id in kept]


@task(cache_policy=NO_CACHE)
def play_benchmark(
    run: Run, policy: str, benchmark: str, folder: Path | None = None, played_as: str = ""
) -> Outcome:
    """Play a benchmark with one policy, of `models/` or with the weights in `folder`, a step of the training
    `played_as`.
    """
    if benchmark not in SPLITS:
        raise UserError(
            f"eval.benchmarks: {benchmark} has no adapter here yet; available: {', '.join(SPLITS)}"
        )
    began, p = time.monotonic(), run.params.eval
    tasks = choose(read_split(run, SPLITS[benchmark]), p.limit, p.seed)
    served = open_policy(run, policy, folder, played_as)
    samples, episodes = asyncio.run(commit(run, served, tasks, p.trials))
    scores = score_samples(run, served, tasks, p.trials, samples, policy, "plain", benchmark)
    return Outcome(scores, samples, episodes, [], time.monotonic() - began)


async def commit(
    run: Run,
    served: Served,
    tasks: list[Task],
    trials: int,
    memory_for: Callable[[Task, int], Memory | None] | None = None,
) -> tuple[list[SampleRecord], list[Episode]]:
    """The real executions, in the true world."""
    from envace.bench.worlds import evaluate
    from envace.judge import make_judge

    p, method = run.params, run.params.played_method(served.played_as)
    with traced(run, served.ref.name) as episodes:
        samples, played = await evaluate(
            served.policy,
            tasks,
            trials=trials,
            seed=p.eval.seed,
            params=p.rollout,
            method=method,
            renderer=served.renderer,
            judge=make_judge(p.judge, method.judge_mode),
            temperature=p.eval.temperature,
            concurrency=p.engine.concurrency,
            progress=Ticker(run, "episodes"),
            memory_for=memory_for,
        )
        episodes += played
    return samples, episodes


class Ticker:
    """Says how far it is and how long the rest may take, ten times in all."""

    def __init__(self, run: Run, what: str):
        self.run, self.what, self.next, self.began = run, what, 0.1, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if done >= self.next * total or done == total:
            left = (time.monotonic() - self.began) * (total - done) / done if done else 0.0
            self.run.say(f"{done} of {total} {self.what}" + (f", {left:.0f} s left" if left >= 1 else ""))
            self.next = done / total + 0.1


def score_samples(
    run: Run,
    served: Served,
    tasks: list[Task],
    trials: int,
    samples: list[SampleRecord],
    policy: str,
    variant: str,
    benchmark: str = "desk",
) -> list[ScoreRecord]:
    """The samples' scores beside what unskilled policies score on the same tasks."""
    from envace.bench.committed import floor_policies, floor_scores
    from envace.bench.summary import plan, summarise

    p = run.params
    unskilled = asyncio.run(floor_scores(tasks, p.eval.seed, floor_policies(tasks, p.eval.seed)))
    floors = {m: {name: scores[m] for name, scores in unskilled.items()} for m in ("success", "checklist")}
    return summarise(
        samples,
        plan([t.id for t in tasks], trials),
        benchmark=benchmark,
        metrics=METRICS,
        floors=floors,
        min_complete=p.eval.min_complete,
        bootstrap=p.report.bootstrap,
        seed=p.eval.seed,
        harness="envace",
        data_hash=file_hash(split_file(run, SPLITS[benchmark])),
        policy=policy,
        policy_hash=served.ref.hash,
        variant=variant,
        versions=versions(),
    )


@task(cache_policy=NO_CACHE)
def gate(run: Run, outcome: Outcome) -> Outcome:
    """Fails when a headline was withheld: too many samples without a score."""
    for s in (s for s in outcome.scores if s.score is None):
        errors = Counter(x.error for x in outcome.samples if x.error)
        cause = f"; most often: {errors.most_common(1)[0][0]}" if errors else ""
        raise StageFailed(
            f"{s.n_infra_failure} samples failed for infrastructure reasons and {s.n_missing} are missing of "
            f"{len(outcome.samples)}, eval.min_complete is {run.params.eval.min_complete:g}{cause}"
        )
    return outcome


@task(cache_policy=NO_CACHE)
def write_outcome(run: Run, outcome: Outcome, out: Path, names: tuple[str, ...]) -> None:
    """scores.json, samples.jsonl, what else there is, and metrics.json for `dvc metrics`; the same to MLflow
    and to the terminal.
    """
    scores, about = outcome.scores, {"seconds": outcome.seconds, "versions": versions(), **outcome.notes}
    with publish(out) as scratch:
        write_json(scratch / "scores.json", {"scores": scores, **about})
        write_jsonl(scratch / "samples.jsonl", outcome.samples)
        write_jsonl(scratch / "episodes.jsonl", outcome.episodes)
        if names[0] == "tts":
            write_jsonl(scratch / "attempts.jsonl", outcome.attempts)
        write_json(scratch / "metrics.json", nested(names, {s.metric: s.score for s in scores}))
    section = "tts" if names[0] == "tts" else names[-1]
    for s in scores:
        run.metrics(with_bounds(f"{section}/{s.metric}", s))
    run.metrics(judge_metrics(v for e in outcome.episodes for v in e.verdicts))
    log_scored(run, out, outcome.samples)
    head = scores[0]
    floors = "".join(f", {k} {v:.3f}" for k, v in head.floors.items())
    tasks = f"over {head.n_tasks} tasks x {head.n_trials} trials"
    run.say(f"{head.metric} {head.score:.3f}{interval(head)} {tasks}{floors}")
