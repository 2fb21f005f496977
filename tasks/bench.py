"""Upstream benchmarks: a policy served, a harness run, its scores kept.

Flows in: the name of a policy and of a benchmark. Flows out: `results/bench/<policy>-<benchmark>/`.
Invariant: work lies under `.state/bench/` and goes on there after an interruption; only a run that passed the
completeness gate is published, with every key scrubbed from its raw files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.registry import adapter as find_adapter
from envace.bench.harness.resume import lost
from envace.bench.harness.spec import EvalRequest, EvalRoles, RawRun
from envace.bench.summary import complete_enough, few, nested
from envace.config import BaselineParams, to_dict
from envace.errors import StageFailed
from envace.io.files import publish, write_json, write_jsonl
from envace.track.lineage import versions
from envace.types import PolicyRef, SampleRecord, ScoreRecord
from tasks.agents import agent_of, part, thinks
from tasks.artifacts import log_scored
from tasks.run import Run
from tasks.summary import interval, shown, with_bounds

# Keys of `bench` that shape no answer: the work folder is the same whatever they are. Trials add to what is
# there.
FREE = (
    "policies",
    "benchmarks",
    "baselines",
    "options",
    "trials",
    "min_complete",
    "deadline_s",
    "concurrency",
)


@dataclass(slots=True)
class Bench:
    """What a harness left."""

    scores: list[ScoreRecord]
    samples: list[SampleRecord]
    runs: list[RawRun]
    request: EvalRequest
    seconds: float


@task(cache_policy=NO_CACHE)
def run_harness(run: Run, policy: str, benchmark: str, folder: Path | None = None) -> Bench:
    """Serve the policy (of `models/`, or the weights in `folder`) and run the benchmark.

    Raises StageFailed when too many samples have no score.
    """
    p, adapter, began = run.params.bench, find_adapter(benchmark), time.monotonic()
    with (
        run.redactor.guarding(),
        agent_of(run, policy, folder) as (agent, ref),
        part(p.user) as user,
        part(p.judge) as judge,
    ):
        request = request_for(run, EvalRoles(agent=agent, user=user, judge=judge), ref, policy, benchmark)
        scores, samples, runs = evaluate(
            adapter,
            request,
            run.path(".harness"),
            say=run.say,
            bootstrap=run.params.report.bootstrap,
            min_complete=p.min_complete,
            policy=policy,
            policy_hash=ref.hash,
            variant=request.variant,
            versions=versions(),
        )
    check_complete(samples, p.min_complete)
    return Bench(scores, samples, runs, request, time.monotonic() - began)


def request_for(run: Run, roles: EvalRoles, ref: PolicyRef, policy: str, benchmark: str) -> EvalRequest:
    """What is asked of the harness. The work folder is named by all that shapes the answers."""
    p = run.params.bench.of(benchmark)
    options, base = dict(p.options[benchmark]), p.baselines.get(policy, BaselineParams())
    adapter = find_adapter(benchmark)
    subsets = tuple(options.pop("subsets", None) or adapter.default)
    free = {*FREE, *({"user", "judge"} - set(adapter.asks))}
    own = {k: v for k, v in to_dict(p).items() if k not in free}
    shape = {k: v for k, v in options.items() if k != "parallel"}  # jobs beside each other
    parts = [own, shape, subsets, ref.hash, to_dict(base), run.params.engine.device]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    return EvalRequest(
        roles=roles,
        subsets=subsets,
        trials=p.trials,
        seed=p.seed,
        concurrency=p.concurrency,
        limit=p.limit,
        deadline_s=p.deadline_s,
        thinking=thinks(p, base),
        options=options,
        out=run.state / "bench" / f"{policy}-{benchmark}-{key}",
    )


def check_complete(samples: list[SampleRecord], min_complete: float) -> None:
    """Raises StageFailed when the share of samples with a score is below `min_complete`."""
    if not complete_enough(samples, min_complete):
        gone = lost(samples)
        kinds = Counter(f"{s.status.value}: {s.error or 'no reason given'}" for s in gone)
        raise StageFailed(
            f"{len(gone)} of {len(samples)} samples have no score, bench.min_complete is {min_complete:g}; "
            f"most often {kinds.most_common(1)[0][0]}"
        )


@task(cache_policy=NO_CACHE)
def write_bench(run: Run, bench: Bench, policy: str, benchmark: str) -> None:
    """scores.json, samples.jsonl, raw/ and metrics.json; every score to MLflow as
    bench/<benchmark>.<subset>.<metric>.<source>.
    """
    told = ("seconds", "code", "isolated", "reason")
    jobs = [{"name": r.job.name, **{name: getattr(r, name) for name in told}} for r in bench.runs]
    out = run.path("results/bench", f"{policy}-{benchmark}")
    with publish(out) as scratch:
        write_json(scratch / "scores.json", {"scores": bench.scores, "seconds": bench.seconds, "jobs": jobs})
        write_jsonl(scratch / "samples.jsonl", bench.samples)
        (scratch / "raw").mkdir()
        copy_raw(bench, scratch / "raw")
        values = {f"{s.subset}.{s.metric}.{s.source}": s.score for s in bench.scores}
        write_json(scratch / "metrics.json", nested(("bench", policy, benchmark), values))
    keep_counts(run, bench, benchmark)
    for s in bench.scores:
        run.metrics(with_bounds(f"bench/{benchmark}.{s.subset}.{s.metric}.{s.source}", s))
        run.say(line(s))
    log_scored(run, out, bench.samples)


def copy_raw(bench: Bench, target: Path) -> None:
    """What the harness left, one folder a job."""
    for r in bench.runs:
        shutil.copytree(r.folder, target / r.job.name, symlinks=True)


def keep_counts(run: Run, bench: Bench, benchmark: str) -> None:
    """Beside the scores in MLflow: which harness, who else was asked, how much was asked."""
    asked, first = bench.request, bench.scores[0]
    others = {"user": asked.roles.user, "judge": asked.roles.judge}
    run.log.tags(
        {
            "version.harness": first.harness,
            "bench.data": first.data_hash,
            "bench.subsets": ",".join(asked.subsets),
            "bench.trials": asked.trials,
            "bench.limit": asked.limit,
            **{f"bench.{k}": first.versions.get(k, e.model if e else "none") for k, e in others.items()},
        }
    )
    for s in bench.scores:
        counts = {"tasks": s.n_tasks, "trials": s.n_trials, "scored": s.n_scored}
        run.metrics({f"bench/{benchmark}.{s.subset}.n_{name}": n for name, n in counts.items()})


def line(s: ScoreRecord) -> str:
    """One score in words."""
    tasks = f"{s.n_tasks} tasks" + (", single trial" if s.n_trials == 1 else f" x {s.n_trials} trials")
    gone = s.n_infra_failure + s.n_missing
    said = [f"{s.benchmark} {s.subset} {s.metric} ({s.source}) {shown(s.score)}{interval(s)} over {tasks}"]
    said += [f"{gone} without a score"] if gone else []
    said += [f"{k} {v:.3f}" for k, v in s.floors.items()]
    return ", ".join(said) + (f"; without {few(s.skipped)}" if s.skipped else "")
