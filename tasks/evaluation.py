"""Asking policies: benchmarks, rehearsal before committing, fidelity.

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
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.errors import StageFailed, UserError
from envace.track.lineage import file_hash, versions
from envace.types import Attempt, Memory, SampleRecord, ScoreRecord, Task
from tasks.data import read_split
from tasks.files import publish, write_json, write_jsonl
from tasks.serving import Served, open_policy

METRICS = ("success", "checklist", "steps", "calls", "tokens")
PARALLEL_TASKS = 16  # tasks that rehearse at once


class Outcome:
    """What an evaluation leaves. Not a dataclass: Prefect would walk every token id of one it is handed."""

    def __init__(
        self,
        scores: list[ScoreRecord],
        samples: list[SampleRecord],
        episodes: list[Any],
        attempts: list[dict[str, Any]],
        seconds: float,
    ):
        self.scores, self.samples, self.episodes, self.attempts, self.seconds = (
            scores,
            samples,
            episodes,
            attempts,
            seconds,
        )


def choose(tasks: Sequence[Task], limit: int, seed: int) -> list[Task]:
    """`limit` tasks by hash, in the order they came; 0 is all. The same for every policy."""
    if not limit or limit >= len(tasks):
        return list(tasks)
    ranked = sorted(tasks, key=lambda t: hashlib.sha256(f"{seed}/{t.id}".encode()).hexdigest())
    kept = {t.id for t in ranked[:limit]}
    return [t for t in tasks if t.id in kept]


@task(cache_policy=NO_CACHE)
def play_benchmark(run: Any, policy: str, benchmark: str) -> Outcome:
    """Play a benchmark with one policy."""
    if benchmark not in PLAYERS:
        raise UserError(
            f"eval.benchmarks: {benchmark} has no adapter here yet; available: {', '.join(PLAYERS)}"
        )
    return PLAYERS[benchmark](run, policy)


def _desk(run: Any, policy: str) -> Outcome:
    began, p = time.time(), run.params
    tasks = choose(read_split(run, "held"), p.eval.limit, p.eval.seed)
    served = open_policy(run, policy)
    samples, episodes = asyncio.run(_commit(run, served, tasks, p.eval.trials))
    scores = _summarise(run, served, tasks, p.eval.trials, samples, policy, "plain")
    return Outcome(scores, samples, episodes, [], time.time() - began)


PLAYERS: dict[str, Callable[[Any, str], Outcome]] = {"desk": _desk}


async def _commit(
    run: Any, served: Served, tasks: list[Task], trials: int, memory_for: Any = None
) -> tuple[list[SampleRecord], list[Any]]:
    """The real executions, in the true world."""
    from envace.bench.desk import evaluate
    from envace.judge import make_judge

    p = run.params
    return await evaluate(
        served.policy, tasks, trials=trials, seed=p.eval.seed, params=p.rollout, method=p.resolved_method(),
        renderer=served.renderer, judge=make_judge(p.judge), temperature=p.eval.temperature,
        concurrency=p.engine.concurrency, progress=Ticker(run, "episodes"), memory_for=memory_for,
    )  # fmt: skip


class Ticker:
    """Says how far it is, ten times in all."""

    def __init__(self, run: Any, what: str):
        self.run, self.what, self.next = run, what, 0.1

    def __call__(self, done: int, total: int) -> None:
        if done >= self.next * total or done == total:
            self.run.say(f"{done} of {total} {self.what}")
            self.next = done / total + 0.1


def _summarise(
    run: Any,
    served: Served,
    tasks: list[Task],
    trials: int,
    samples: list[SampleRecord],
    policy: str,
    variant: str,
) -> list[ScoreRecord]:
    from envace.bench.summary import plan, summarise
    from envace.desk.score import floors

    p = run.params
    skill_free = {m: floors(tasks, p.eval.seed, m) for m in ("success", "checklist")}
    return summarise(
        samples, plan([t.id for t in tasks], trials), benchmark="desk", metrics=METRICS, floors=skill_free,
        min_complete=p.eval.min_complete, bootstrap=p.report.bootstrap, seed=p.eval.seed, harness="desk",
        data_hash=file_hash(run.path("data/staged/held.parquet")), policy=policy, policy_hash=served.ref.hash,
        variant=variant, versions=versions(),
    )  # fmt: skip


@task(cache_policy=NO_CACHE)
def rehearse_and_commit(run: Any, mode: str, n: int) -> Outcome:
    """N private rehearsals a task and trial, then one real execution told what they taught."""
    began, p = time.time(), run.params
    tasks = choose(read_split(run, "held"), p.tts.limit, p.eval.seed)
    served = open_policy(run, p.tts.policy)
    samples, episodes, attempts = asyncio.run(_rehearsed(run, served, tasks, mode, n))
    scores = _summarise(run, served, tasks, p.tts.trials, samples, p.tts.policy, f"rehearse-{mode}-{n}")
    return Outcome(scores, samples, episodes, attempts, time.time() - began)


async def _rehearsed(
    run: Any, served: Served, tasks: list[Task], mode: str, n: int
) -> tuple[list, list, list[dict[str, Any]]]:
    from envace.bench.desk import trial_seed
    from envace.rollout.prompts import load_prompt_set
    from envace.tts.rehearse import rehearse

    p, gate = run.params, asyncio.Semaphore(PARALLEL_TASKS)
    prompts, tick = load_prompt_set(p.rollout.prompt_set), Ticker(run, "tasks rehearsed")
    lessons: dict[tuple[str, int], Memory] = {}
    kept: list[dict[str, Any]] = []

    async def one(job: Task, trial: int) -> None:
        async with gate:
            attempts, memory = await rehearse(
                job, policy=served.policy, renderer=served.renderer, budget=p.tts, mode=mode, n=n, method=p.resolved_method(),
                params=p.rollout, prompt_set=prompts, seed=trial_seed(p.eval.seed, job.id, trial),
            )  # fmt: skip
        lessons[job.id, trial] = memory
        kept.extend({"task": job.id, "trial": trial, "memory": memory, "attempt": a} for a in attempts)
        tick(len(lessons), len(tasks) * p.tts.trials)

    if n:
        await asyncio.gather(*(one(job, trial) for job in tasks for trial in range(p.tts.trials)))
    samples, episodes = await _commit(
        run, served, tasks, p.tts.trials, (lambda job, trial: lessons[job.id, trial]) if n else None
    )
    kept.sort(key=lambda k: (k["task"], k["trial"], _index(k["attempt"])))
    return samples, episodes, kept


def _index(attempt: Attempt) -> int:
    return attempt.index


@task(cache_policy=NO_CACHE)
def gate(run: Any, outcome: Outcome) -> Outcome:
    """Fails when a headline was withheld: too many samples without a score."""
    withheld = [s for s in outcome.scores if s.score is None]
    if withheld:
        s = withheld[0]
        errors = Counter(x.error for x in outcome.samples if x.error)
        cause = f"; most often: {errors.most_common(1)[0][0]}" if errors else ""
        raise StageFailed(
            f"{s.n_infra_failure} samples failed for infrastructure reasons and {s.n_missing} are missing of {len(outcome.samples)}, "
            f"eval.min_complete is {run.params.eval.min_complete:g}{cause}"
        )
    return outcome


@task(cache_policy=NO_CACHE)
def write_outcome(run: Any, outcome: Outcome, out: Path, names: tuple[str, ...]) -> None:
    """scores.json, samples.jsonl, what else there is, and metrics.json for `dvc metrics`."""
    with publish(out) as scratch:
        write_json(
            scratch / "scores.json",
            {"scores": outcome.scores, "seconds": outcome.seconds, "versions": versions()},
        )
        write_jsonl(scratch / "samples.jsonl", outcome.samples)
        if outcome.attempts or names[0] == "tts":
            write_jsonl(scratch / "attempts.jsonl", outcome.attempts)
        else:
            write_jsonl(scratch / "episodes.jsonl", outcome.episodes)
        values = {s.metric: s.score for s in outcome.scores}
        write_json(scratch / "metrics.json", nested(names, values))
    log_scores(run, names, outcome.scores)


def nested(names: tuple[str, ...], values: dict[str, Any]) -> dict[str, Any]:
    """{a: {b: values}}, so that the rows of `dvc metrics show` differ between variants."""
    for name in reversed(names):
        values = {name: values}
    return values


def log_scores(run: Any, names: tuple[str, ...], scores: Sequence[ScoreRecord]) -> None:
    section = "tts" if names[0] == "tts" else names[-1]
    for s in scores:
        bounds = {"": s.score, "_low": s.low, "_high": s.high}
        run.metrics({f"{section}/{s.metric}{end}": v for end, v in bounds.items() if v is not None})
    head = scores[0]
    spread = f" [{head.low:.3f}, {head.high:.3f}]" if head.low is not None else ""
    floors = "".join(f", {k} {v:.3f}" for k, v in head.floors.items())
    run.say(
        f"{head.metric} {head.score:.3f}{spread} over {head.n_tasks} tasks x {head.n_trials} trials{floors}"
    )


@task(cache_policy=NO_CACHE)
def measure_fidelity(run: Any, policy: str) -> tuple[dict[str, float], list[dict[str, Any]], float]:
    """How often the rehearsed response is the true one; returns (scores, a row a call, seconds)."""
    from envace.fidelity.measure import measure

    began, p = time.time(), run.params
    served = open_policy(run, policy)
    scores, rows = asyncio.run(
        measure(
            served.policy, read_split(run, "held"), renderer=served.renderer, method=p.resolved_method(),
            params=p.rollout, limit=p.fidelity.limit, seed=p.eval.seed,
        )
    )  # fmt: skip
    return scores, rows, time.time() - began


@task(cache_policy=NO_CACHE)
def write_fidelity(
    run: Any, policy: str, measured: tuple[dict[str, float], list[dict[str, Any]], float]
) -> None:
    scores, rows, seconds = measured
    with publish(run.path("results/fidelity", policy)) as scratch:
        write_json(
            scratch / "scores.json",
            {"scores": scores, "seconds": seconds, "policy": policy, "versions": versions()},
        )
        write_jsonl(scratch / "calls.jsonl", rows)
        write_json(scratch / "metrics.json", nested(("fidelity", policy), scores))
    run.metrics({f"fidelity/{k}": v for k, v in scores.items()})
    run.say(", ".join(f"{k} {v:.3f}" for k, v in scores.items()))
