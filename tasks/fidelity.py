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
from tasks.summary import interval

Rows = list[dict[str, JSON]]


@task(cache_policy=NO_CACHE)
def measure_fidelity(run: Run, policy: str) -> None:
    """Rehearse recorded and spoilt calls, then play whole tasks in rehearsal and in the true world; the
    files, and the main numbers for MLflow and the terminal.
    """
    began, served = time.monotonic(), open_policy(run, policy)
    scores, calls = _calls(run, served)
    gap, plays = _plays(run, served)
    scores |= gap
    values, out = {name: s.value for name, s in scores.items()}, run.path("results/fidelity", policy)
    with publish(out) as scratch:
        about = {"scores": values, "spread": scores, "seconds": time.monotonic() - began}
        write_json(scratch / "scores.json", {**about, "policy": policy, "versions": versions()})
        write_jsonl(scratch / "calls.jsonl", calls)
        write_jsonl(scratch / "plays.jsonl", plays)
        write_json(scratch / "metrics.json", nested(("fidelity", policy), values))
    run.metrics({name if name.startswith("gap/") else f"fidelity/{name}": v for name, v in values.items()})
    run.artifact("scores.json", out / "scores.json")
    mode = run.params.resolved_method().few_shot
    first = (f"{mode}/exact", f"{mode}/recorded/exact", f"{mode}/copy/exact", "none/exact")
    for name in (*first, "gap/rehearsed", "gap/true", "gap/collusion"):
        if (s := scores.get(name)) is not None:
            run.say(f"{name} {s.value:.3f}{interval(s)}, {s.calls} over {s.tasks} tasks")


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
