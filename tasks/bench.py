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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.bench.harness.spec import EvalRequest, EvalRoles, RawRun
from envace.errors import StageFailed
from envace.params import RoleParams, to_dict
from envace.policy.card import read_card
from envace.track.lineage import versions
from envace.types import Endpoint, PolicyRef, SampleRecord, Sampling, ScoreRecord
from envace.view.table import few
from tasks.files import publish, write_json, write_jsonl


@dataclass(slots=True)
class Bench:
    """What a harness left."""

    scores: list[ScoreRecord]
    samples: list[SampleRecord]
    runs: list[RawRun]
    work: Path
    seconds: float


@task(cache_policy=NO_CACHE)
def run_harness(run: Any, policy: str, benchmark: str) -> Bench:
    """Serve the policy and run the benchmark. Raises StageFailed when too many samples have no score."""
    from envace.bench.harness.pipeline import evaluate
    from envace.bench.harness.registry import adapter as find_adapter

    p, adapter, began = run.params.bench, find_adapter(benchmark), time.time()
    with agent_of(run, policy) as (agent, ref), part(p.user) as user, part(p.judge) as judge:
        request = request_for(run, EvalRoles(agent=agent, user=user, judge=judge), ref, benchmark)
        scores, samples, runs = evaluate(
            adapter, request, run.path(".harness"), say=run.say, bootstrap=run.params.report.bootstrap,
            min_complete=p.min_complete, policy=policy, policy_hash=ref.hash, variant=request.variant,
            versions=versions(),
        )  # fmt: skip
    check_complete(samples, p.min_complete)
    return Bench(scores, samples, runs, request.out, time.time() - began)


@contextmanager
def agent_of(run: Any, policy: str) -> Iterator[tuple[Endpoint, PolicyRef]]:
    """An address at which the policy answers, and its card; weights are served for as long as the block lasts."""
    from envace.serving.serve import serve
    from envace.types import replace

    ref, p = read_card(run.path("models", policy)), run.params
    sampling = Sampling(temperature=p.bench.temperature, max_tokens=p.bench.max_tokens)
    if ref.kind == "endpoint":
        base = p.bench.baselines[policy]
        yield Endpoint(
            base_url=base.base_url, model=base.model, key_env=base.key_env, context=base.context, sampling=sampling
        ), ref  # fmt: skip
        return
    elsewhere = policy in p.bench.baselines  # on the hub, only its card is here
    log = run.state / "logs" / f"serve-{policy}.log"
    with serve(
        ref.uri if elsewhere else run.path("models", policy), name=policy,
        revision=ref.revision if elsewhere else "", device=p.engine.device, thinking=p.bench.thinking, concurrency=p.bench.concurrency,
        say=run.say, log=log,
    ) as endpoint:  # fmt: skip
        yield replace(endpoint, sampling=sampling), ref


def request_for(run: Any, roles: EvalRoles, ref: PolicyRef, benchmark: str) -> EvalRequest:
    """What is asked of the harness. The work folder is named by all that shapes the answers."""
    p = run.params.bench
    options = dict(p.options.get(benchmark, {}))
    subsets = tuple(options.pop("subsets", ()))
    own = {k: v for k, v in to_dict(p).items() if k not in ("policies", "benchmarks", "baselines", "options")}
    key = hashlib.sha256(json.dumps([own, options, subsets, ref.hash], sort_keys=True).encode()).hexdigest()[
        :12
    ]
    return EvalRequest(
        roles=roles, subsets=subsets, trials=p.trials, seed=p.seed, concurrency=p.concurrency, limit=p.limit,
        deadline_s=p.deadline_s, thinking=p.thinking, options=options,
        out=run.state / "bench" / f"{ref.name}-{benchmark}-{key}",
    )  # fmt: skip


@contextmanager
def part(role: RoleParams) -> Iterator[Endpoint | None]:
    """The server of a role, started here when its lines are fixed; None where nobody plays it."""
    from envace.serving.scripted import scripted

    if role.script:
        with scripted(role.script) as endpoint:
            yield endpoint
        return
    sampling = Sampling(temperature=role.temperature, max_tokens=role.max_tokens)
    server = Endpoint(
        base_url=role.base_url, model=role.model, key_env=role.key_env, context=role.context, sampling=sampling,
        extra_body=role.extra_body,
    )  # fmt: skip
    yield server if role.base_url else None


def check_complete(samples: list[SampleRecord], min_complete: float) -> None:
    """Raises StageFailed when the share of samples with a score is below `min_complete`."""
    lost = [s for s in samples if s.status in ("infra_failure", "missing")]
    if len(lost) > (1 - min_complete) * len(samples) + 1e-9:
        kinds = Counter(f"{s.status.value}: {s.error or 'no reason given'}" for s in lost)
        raise StageFailed(
            f"{len(lost)} of {len(samples)} samples have no score, bench.min_complete is {min_complete:g}; "
            f"most often {kinds.most_common(1)[0][0]}"
        )


@task(cache_policy=NO_CACHE)
def write_bench(run: Any, bench: Bench, policy: str, benchmark: str) -> None:
    """scores.json, samples.jsonl, raw/ and metrics.json; every score to MLflow as bench/<benchmark>.<subset>.<metric>."""
    from tasks.evaluation import nested

    jobs = [
        {"name": r.job.name, "seconds": r.seconds, "code": r.code, "isolated": r.isolated, "reason": r.reason}
        for r in bench.runs
    ]
    with publish(run.path("results/bench", f"{policy}-{benchmark}")) as scratch:
        write_json(scratch / "scores.json", {"scores": bench.scores, "seconds": bench.seconds, "jobs": jobs})
        write_jsonl(scratch / "samples.jsonl", bench.samples)
        shutil.copytree(bench.work, scratch / "raw", symlinks=True)
        values = {f"{s.subset}.{s.metric}.{s.source}": s.score for s in bench.scores}
        write_json(scratch / "metrics.json", nested(("bench", policy, benchmark), values))
    for s in bench.scores:
        bounds = {"": s.score, "_low": s.low, "_high": s.high}
        name = f"bench/{benchmark}.{s.subset}.{s.metric}.{s.source}"
        run.metrics({f"{name}{end}": v for end, v in bounds.items() if v is not None})
        run.say(line(s))


def line(s: ScoreRecord) -> str:
    """One score in words."""
    value = "withheld" if s.score is None else f"{s.score:.3f}"
    spread = f" [{s.low:.3f}, {s.high:.3f}]" if s.low is not None else ""
    floors = "".join(f", {k} {v:.3f}" for k, v in s.floors.items())
    skipped = f"; without {few(s.skipped)}" if s.skipped else ""
    lost = s.n_infra_failure + s.n_missing
    missing = f", {lost} without a score" if lost else ""
    return (
        f"{s.benchmark} {s.subset} {s.metric} ({s.source}) {value}{spread} over {s.n_tasks} tasks x "
        f"{s.n_trials} trials{missing}{floors}{skipped}"
    )
