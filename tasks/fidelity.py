"""How true a policy's rehearsals are, and how much of its success is only rehearsed.

Flows in: a served policy and held-out tasks. Flows out: `results/fidelity/<policy>/`: scores.json (`scores`
by name, `spread` with interval and counts), calls.jsonl, plays.jsonl, metrics.json.
Invariant: the true response is never part of a prompt; every policy meets the same calls, tasks and seeds.
"""

from __future__ import annotations

import asyncio
import time

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.bench.fidelity.scores import Score
from envace.bench.summary import nested
from envace.io.files import publish, write_json, write_jsonl
from envace.track.lineage import versions
from envace.types import JSON
from tasks.evaluation import Ticker, choose
from tasks.rows import read_split
from tasks.run import Run
from tasks.serving import Served, open_policy

Rows = list[dict[str, JSON]]


class Measured:
    """What the stage leaves. Not a dataclass: Prefect would walk every row of one it is handed."""

    def __init__(self, scores: dict[str, Score], calls: Rows, plays: Rows, seconds: float):
        self.scores, self.calls, self.plays, self.seconds = scores, calls, plays, seconds


@task(cache_policy=NO_CACHE)
def measure_fidelity(run: Run, policy: str) -> Measured:
    """Rehearse recorded and spoilt calls, then play whole tasks in rehearsal and in the true world."""
    began, served = time.time(), open_policy(run, policy)
    scores, calls = _calls(run, served)
    gap, plays = _plays(run, served)
    return Measured({**scores, **gap}, calls, plays, time.time() - began)


def _calls(run: Run, served: Served) -> tuple[dict[str, Score], Rows]:
    from envace.bench.fidelity.measure import measure
    from envace.bench.fidelity.scores import summarise

    p = run.params
    rows = asyncio.run(
        measure(
            served.policy,
            read_split(run, "held"),
            renderer=served.renderer,
            method=p.played_method(served.played_as),
            params=p.rollout,
            limit=p.fidelity.limit,
            seed=p.eval.seed,
            concurrency=p.engine.concurrency,
        )
    )
    return summarise(rows, bootstrap=p.report.bootstrap, seed=p.eval.seed), rows


def _plays(run: Run, served: Served) -> tuple[dict[str, Score], Rows]:
    """The collusion gap; nothing where it is switched off or no task has a world to compare with."""
    from envace.bench.fidelity.gap import play_both, rows_of, summarise
    from envace.judge import make_judge

    p = run.params
    tasks = [t for t in read_split(run, "held") if t.world] if p.fidelity.episodes else []
    if not tasks:
        return {}, []
    tasks, method = choose(tasks, p.fidelity.episodes, p.eval.seed), p.played_method(served.played_as)
    played = asyncio.run(
        play_both(
            served.policy,
            tasks,
            trials=p.fidelity.trials,
            seed=p.eval.seed,
            renderer=served.renderer,
            judge=make_judge(p.judge, method.judge_mode),
            method=method,
            params=p.rollout,
            temperature=p.eval.temperature,
            concurrency=p.engine.concurrency,
            progress=Ticker(run, "episodes, rehearsed and true"),
        )
    )
    rows = rows_of(tasks, played)
    return summarise(tasks, played, rows, bootstrap=p.report.bootstrap, seed=p.eval.seed), rows


@task(cache_policy=NO_CACHE)
def write_fidelity(run: Run, policy: str, found: Measured) -> None:
    """The files, and the main numbers for MLflow and the terminal."""
    values = {name: s.value for name, s in found.scores.items()}
    with publish(run.path("results/fidelity", policy)) as scratch:
        about = {"scores": values, "spread": found.scores, "seconds": found.seconds}
        write_json(scratch / "scores.json", {**about, "policy": policy, "versions": versions()})
        write_jsonl(scratch / "calls.jsonl", found.calls)
        write_jsonl(scratch / "plays.jsonl", found.plays)
        write_json(scratch / "metrics.json", nested(("fidelity", policy), values))
    run.metrics({name if name.startswith("gap/") else f"fidelity/{name}": v for name, v in values.items()})
    for name in headlines(run, found.scores):
        run.say(told(name, found.scores[name]))


def headlines(run: Run, scores: dict[str, Score]) -> list[str]:
    """The scores a person looks at first, those that were measured."""
    mode = run.params.resolved_method().few_shot
    names = [f"{mode}/exact", f"{mode}/recorded/exact", f"{mode}/copy/exact", "none/exact"]
    return [n for n in (*names, "gap/rehearsed", "gap/true", "gap/collusion") if n in scores]


def told(name: str, s: Score) -> str:
    """`gap/collusion 0.120 [0.040, 0.200], 96 over 48 tasks`."""
    spread = f" [{s.low:.3f}, {s.high:.3f}]" if s.low is not None else ""
    return f"{name} {s.value:.3f}{spread}, {s.calls} over {s.tasks} tasks"
