"""Sample records -> score records, behind a gate of completeness.

Invariant: scored + agent failures + infrastructure failures + missing = planned. A failure of the agent
counts 0; one of the infrastructure has no score, and when more than `1 - min_complete` of the plan lacks one
every number is withheld (None), also what the harness itself would print: losing samples can never raise one.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypedDict, Unpack

from envace.bench.stats import Interval, Values, cluster_bootstrap, stratified, task_means
from envace.types import JSON, SampleRecord, SampleStatus, ScoreRecord, replace

SCALES = {"steps": "count", "calls": "count", "tokens": "count", "seconds": "s"}  # all others are 0-1
HAS_SCORE = (SampleStatus.SCORED, SampleStatus.AGENT_FAILURE)
WITHHELD = (None, None, None)
DO_NOTHING = "do_nothing"
Plan = Collection[tuple[str, int]]  # (task, trial)


class Identity(TypedDict, total=False):
    """What stands in every score of an evaluation, as `ScoreRecord` names it."""

    harness: str
    data_hash: str
    policy: str
    policy_hash: str
    variant: str
    seed: int
    skipped: tuple[str, ...]
    versions: dict[str, str]
    source: str


class Counted(TypedDict):
    """How many samples a score is of."""

    n_tasks: int
    n_trials: int
    n_scored: int
    n_agent_failure: int
    n_infra_failure: int
    n_missing: int


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
    gone = {"seed": 0, "status": SampleStatus.MISSING, "error": "never seen"}
    return [seen.get(key) or SampleRecord(task=key[0], trial=key[1], **gone) for key in planned]


def values_by_task(samples: Iterable[SampleRecord], metric: str) -> dict[str, list[float]]:
    """Task -> one value per trial that has one. An agent failure is 0 on a 0-1 metric and absent from counts.

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
    """Task -> what the harness counted, one value per trial that it did count."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        if "upstream" in sample.metrics:
            values.setdefault(sample.task, []).append(float(sample.metrics["upstream"]))
    return values


def lost(samples: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Samples without a score, which another run may still give them."""
    return [s for s in samples if s.status not in HAS_SCORE]


def complete_enough(samples: Sequence[SampleRecord], least: float) -> bool:
    """Whether at least this share of the planned samples has a score; never without any."""
    return bool(samples) and (len(samples) - len(lost(samples))) / len(samples) >= least


def counted(samples: Collection[SampleRecord]) -> Counted:
    """The counts of a score over these samples."""
    status = Counter(s.status for s in samples)
    return {
        "n_tasks": len({s.task for s in samples}),
        "n_trials": len({s.trial for s in samples}),
        "n_scored": status[SampleStatus.SCORED],
        "n_agent_failure": status[SampleStatus.AGENT_FAILURE],
        "n_infra_failure": status[SampleStatus.INFRA_FAILURE],
        "n_missing": status[SampleStatus.MISSING],
    }


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
    **identity: Unpack[Identity],
) -> list[ScoreRecord]:
    """One record per metric, in the order of `metrics`. `floors` is metric -> {agent: score}."""
    full = complete_plan(samples, planned)
    complete, records = complete_enough(full, min_complete), []
    for metric in metrics:
        values, (score, low, high) = values_by_task(full, metric), WITHHELD
        if complete and values:
            score, low, high = cluster_bootstrap(values, bootstrap, identity.get("seed", 0))
        made = ScoreRecord(
            benchmark=benchmark,
            subset=subset,
            metric=metric,
            score=score,
            low=low,
            high=high,
            floors=dict((floors or {}).get(metric, {})),
            scale=SCALES.get(metric, "0-1"),
            **counted(full),
            **identity,
        )
        records.append(made)
    return records


def upstream_record(strict: ScoreRecord, found: Interval | None) -> ScoreRecord:
    """What the harness itself would print beside a strict record; withheld where that one is."""
    score, low, high = WITHHELD if strict.score is None or found is None else found
    return replace(strict, source="upstream", score=score, low=low, high=high)


def summed(parts: Sequence[ScoreRecord]) -> ScoreRecord:
    """The first of several subsets' records with the counts of all; labels that differ are joined by ";"."""
    names = ("n_tasks", "n_scored", "n_agent_failure", "n_infra_failure", "n_missing")
    counts = {name: sum(getattr(p, name) for p in parts) for name in names}
    keys = dict.fromkeys(key for p in parts for key in p.versions)
    versions = {k: "; ".join(dict.fromkeys(p.versions[k] for p in parts if k in p.versions)) for k in keys}
    data = [p.data_hash for p in parts]
    one = data[0] if len(set(data)) == 1 else hashlib.sha256("".join(data).encode()).hexdigest()
    trials = max(p.n_trials for p in parts)
    return replace(parts[0], **counts, n_trials=trials, versions=versions, data_hash=one)


def averages(
    parts: Sequence[ScoreRecord],
    values: Mapping[str, Values] | None,
    *,
    skipped: Sequence[str],
    bootstrap: int,
    all_there: bool = True,
) -> list[ScoreRecord]:
    """macro (plain mean of the subsets) and micro (every task alike) of one metric.

    parts: the strict record of each subset. values: subset -> task -> values; None withholds both numbers,
    whose reasons stand in `skipped`. The floors are those of the subsets, where `all_there` and each has one.
    """
    floors = [p.floors[DO_NOTHING] for p in parts if DO_NOTHING in p.floors]
    sizes, why = [p.n_tasks for p in parts], tuple(dict.fromkeys(skipped))
    base = replace(summed(parts), source="derived", skipped=why, floors={})
    found = {"macro": WITHHELD, "micro": WITHHELD}
    if values:
        means = {name: task_means(own) for name, own in values.items()}
        every = {task: v for own in values.values() for task, v in own.items()}
        found["macro"] = stratified(means, lambda m: sum(m.values()) / len(m), bootstrap, base.seed)
        found["micro"] = cluster_bootstrap(every, bootstrap, base.seed)
    made = []
    for (name, (score, low, high)), weights in zip(found.items(), ([1] * len(parts), sizes)):
        own = replace(base, subset=name, score=score, low=low, high=high)
        if all_there and len(floors) == len(parts):
            floor = math.fsum(f * w for f, w in zip(floors, weights)) / sum(weights)
            own = replace(own, floors={DO_NOTHING: floor})
        made.append(own)
    return made


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def nested(names: tuple[str, ...], values: dict[str, JSON]) -> dict[str, JSON]:
    """{a: {b: values}}, so that the rows of `dvc metrics show` differ between variants."""
    for name in reversed(names):
        values = {name: values}
    return values
