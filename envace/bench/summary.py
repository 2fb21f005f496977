"""Sample records -> score records, behind a gate of completeness.

Flows in: the samples that were seen and the plan of what should have been. Flows out: one `ScoreRecord` a
metric.
Invariant: scored + agent failures + infrastructure failures + missing = planned. A failure of the agent counts
0; a failure of the infrastructure has no score, and when more than `1 - min_complete` of the plan lacks one every
number is withheld (None), what the harness itself would print included, so that losing samples can never raise one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from envace.bench.stats import cluster_bootstrap
from envace.types import SampleRecord, SampleStatus, ScoreRecord

SCALES = {"steps": "count", "calls": "count", "tokens": "count", "seconds": "s"}  # all others are 0-1
HAS_SCORE = (SampleStatus.SCORED, SampleStatus.AGENT_FAILURE)
Plan = Collection[tuple[str, int]]  # (task, trial)


def plan(tasks: Iterable[str], trials: int) -> list[tuple[str, int]]:
    """Every (task, trial) an evaluation owes."""
    return [(task, trial) for trial in range(trials) for task in tasks]


def complete_plan(samples: Iterable[SampleRecord], planned: Plan) -> list[SampleRecord]:
    """One record for each planned sample, in the plan's order; those never seen are MISSING.

    Raises ValueError for a sample seen twice or never planned: it came from another run.
    """
    seen: dict[tuple[str, int], SampleRecord] = {}
    owed = set(planned)
    for sample in samples:
        key = (sample.task, sample.trial)
        if key in seen or key not in owed:
            raise ValueError(f"sample {key} {'occurs twice' if key in seen else 'was not planned'}")
        seen[key] = sample
    return [seen.get(key) or _missing(*key) for key in planned]


def values_by_task(samples: Iterable[SampleRecord], metric: str) -> dict[str, list[float]]:
    """Task -> one value a trial that has one. An agent failure is 0 on a 0-1 metric and absent from counts.

    Raises ValueError when a scored sample lacks the metric.
    """
    values: dict[str, list[float]] = {}
    for sample in samples:
        if sample.status is SampleStatus.SCORED:
            if metric not in sample.metrics:
                raise ValueError(f"sample ({sample.task}, {sample.trial}) is scored but has no {metric}")
            values.setdefault(sample.task, []).append(float(sample.metrics[metric]))
        elif sample.status is SampleStatus.AGENT_FAILURE and metric not in SCALES:
            values.setdefault(sample.task, []).append(0.0)
    return values


def upstream_by_task(samples: Iterable[SampleRecord]) -> dict[str, list[float]]:
    """Task -> what the harness counted, one value a trial that it did count."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        if "upstream" in sample.metrics:
            values.setdefault(sample.task, []).append(float(sample.metrics["upstream"]))
    return values


def complete_enough(samples: Sequence[SampleRecord], least: float) -> bool:
    """Whether at least this share of the planned samples has a score; never without any."""
    scored = sum(s.status in HAS_SCORE for s in samples)
    return bool(samples) and scored / len(samples) >= least


def summarise(
    samples: Iterable[SampleRecord],
    planned: Plan,
    *,
    benchmark: str,
    metrics: Sequence[str],
    floors: Mapping[str, Mapping[str, float]] | None = None,
    min_complete: float = 1.0,
    subset: str = "all",
    bootstrap: int = 2000,
    seed: int = 0,
    **identity: Any,
) -> list[ScoreRecord]:
    """One record a metric, in the order of `metrics`.

    `floors` is metric -> {agent: score}, e.g. {"success": {"do_nothing": 0.0}}. `identity` fills the other
    fields of ScoreRecord (harness, policy, policy_hash, data_hash, variant, skipped, versions).
    """
    full = complete_plan(samples, planned)
    counts = Counter(s.status for s in full)
    complete = complete_enough(full, min_complete)
    shared = {
        "benchmark": benchmark,
        "subset": subset,
        "n_tasks": len({s.task for s in full}),
        "n_trials": len({s.trial for s in full}),
        "n_scored": counts[SampleStatus.SCORED],
        "n_agent_failure": counts[SampleStatus.AGENT_FAILURE],
        "n_infra_failure": counts[SampleStatus.INFRA_FAILURE],
        "n_missing": counts[SampleStatus.MISSING],
        "seed": seed,
        **identity,
    }
    records = []
    for metric in metrics:
        values = values_by_task(full, metric)
        refused = not complete or not values
        score, low, high = (None, None, None) if refused else cluster_bootstrap(values, bootstrap, seed)
        own = dict((floors or {}).get(metric, {}))
        scale = SCALES.get(metric, "0-1")
        records.append(
            ScoreRecord(metric=metric, score=score, low=low, high=high, floors=own, scale=scale, **shared)
        )
    return records


def _missing(task: str, trial: int) -> SampleRecord:
    return SampleRecord(task=task, trial=trial, seed=0, status=SampleStatus.MISSING, error="never seen")
