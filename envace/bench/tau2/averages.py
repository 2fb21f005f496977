"""Sample records of tau² -> scores: the reward and pass^k of each domain, and the averages over the three of the paper.

Flows in: one record a planned sample. Flows out: `ScoreRecord`s; `strict` counts an agent's failure 0, `upstream`
is what tau² itself would print, which leaves out dialogues that ended in an exception.
Invariant: when more samples than allowed have no score, every number is withheld, upstream's too. An average
over domains exists only when all of its domains do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envace.bench import stats
from envace.bench.stats import Interval, cluster_bootstrap, pass_hat_k, task_means
from envace.bench.summary import complete_enough, upstream_by_task, values_by_task
from envace.types import SampleRecord, SampleStatus, ScoreRecord, replace

AVERAGED = ("airline", "retail", "telecom")  # what the literature's tau² average is over
Values = dict[str, list[float]]  # task -> one reward a trial
NO_INTERVAL = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The samples of one subset and what its scores are labelled with."""

    name: str
    samples: Sequence[SampleRecord]
    trials: int
    floor: float | None = None  # of the agent that does nothing
    data_hash: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def complete(self, least: float) -> bool:
        return complete_enough(self.samples, least)

    @property
    def strict(self) -> Values:
        return values_by_task(self.samples, "reward")

    @property
    def upstream(self) -> Values:
        return upstream_by_task(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How scores are made, and what stands in each of them."""

    seed: int
    bootstrap: int = 2000
    min_complete: float = 1.0
    skipped: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)


def domain_scores(d: Domain, how: Scoring) -> list[ScoreRecord]:
    """reward and pass^1..pass^trials, strict then upstream."""
    complete, records = d.complete(how.min_complete), []
    for source, values in (("strict", d.strict), ("upstream", d.upstream)):
        mean = _mean(values, source, how) if complete and values else None
        records.append(_record(d.name, "reward", source, mean, [d], how))
        for k in range(1, d.trials + 1):
            chance = _pass(values, k, how) if complete and values else None
            records.append(_record(d.name, f"pass^{k}", source, chance, [d], how))
    return records


def average_scores(
    domains: Mapping[str, Domain], absent: Mapping[str, str], how: Scoring
) -> list[ScoreRecord]:
    """macro (plain mean of the domains) and micro (every task equal); withheld, with reasons, unless all are there."""
    have = [domains[name] for name in AVERAGED if name in domains]
    why = [absent[name] for name in AVERAGED if name not in domains]
    why += [f"{d.name}: incomplete" for d in have if not d.complete(how.min_complete)]
    if not have:
        return []
    strict = {} if why else {d.name: d.strict for d in have}
    how = replace(how, skipped=tuple(dict.fromkeys([*how.skipped, *why])))
    records = []
    for metric, values in _per_metric(strict, max(d.trials for d in have)).items():
        macro, micro = (stratified(values, how), _pooled(values, how)) if values else (None, None)
        records.append(_record("macro", metric, "derived", macro, have, how, _mean_floor(have)))
        records.append(_record("micro", metric, "derived", micro, have, how, _task_floor(have)))
    return records


def stratified(values: Mapping[str, Values], how: Scoring) -> Interval:
    """Mean over domains of the mean over tasks; each resample draws tasks within every domain."""
    strata = {name: task_means(tasks) for name, tasks in values.items()}
    return stats.stratified(strata, lambda m: sum(m.values()) / len(m), how.bootstrap, how.seed)


def _per_metric(strict: Mapping[str, Values], trials: int) -> dict[str, dict[str, Values]]:
    """metric -> domain -> task -> values; empty where a domain cannot give it."""
    names = ["reward", *(f"pass^{k}" for k in range(1, trials + 1))]
    found: dict[str, dict[str, Values]] = {name: {} for name in names}
    if not strict:
        return found
    found["reward"] = dict(strict)
    for k in range(1, trials + 1):
        if all(len(v) >= k for values in strict.values() for v in values.values()):
            found[f"pass^{k}"] = {name: _chances(values, k) for name, values in strict.items()}
    return found


def _chances(values: Values, k: int) -> Values:
    return {task: [pass_hat_k({task: v}, k)] for task, v in values.items()}


def _mean(values: Values, source: str, how: Scoring) -> Interval:
    """strict: over tasks of the mean over trials. upstream: over dialogues, as tau² does; unequal trials have no interval."""
    if source == "strict" or len({len(v) for v in values.values()}) == 1:
        return cluster_bootstrap(values, how.bootstrap, how.seed)
    every = [v for trials in values.values() for v in trials]
    return (math.fsum(every) / len(every), *NO_INTERVAL)


def _pass(values: Values, k: int, how: Scoring) -> Interval | None:
    if any(len(v) < k for v in values.values()):
        return None  # a task with fewer trials than k has no pass^k
    return cluster_bootstrap(_chances(values, k), how.bootstrap, how.seed)


def _pooled(values: Mapping[str, Values], how: Scoring) -> Interval:
    every = {task: v for domain in values.values() for task, v in domain.items()}
    return cluster_bootstrap(every, how.bootstrap, how.seed)


def _mean_floor(domains: Sequence[Domain]) -> float | None:
    floors = [d.floor for d in domains]
    return None if None in floors or len(domains) < len(AVERAGED) else math.fsum(floors) / len(floors)


def _task_floor(domains: Sequence[Domain]) -> float | None:
    if _mean_floor(domains) is None:
        return None
    sizes = [len({s.task for s in d.samples}) for d in domains]
    return math.fsum(d.floor * n for d, n in zip(domains, sizes, strict=True)) / sum(sizes)


def _record(
    subset: str,
    metric: str,
    source: str,
    found: Interval | None,
    domains: Sequence[Domain],
    how: Scoring,
    floor: float | None = None,
) -> ScoreRecord:
    samples = [s for d in domains for s in d.samples]
    score, low, high = found or (None, None, None)
    floor = domains[0].floor if subset == domains[0].name else floor
    own = dict(how.identity)
    versions = {**own.pop("versions", {}), **_shared_versions(domains)}
    count = {status: sum(s.status is status for s in samples) for status in SampleStatus}
    return ScoreRecord(
        benchmark="tau2", subset=subset, metric=metric, score=score, low=low, high=high, source=source,
        n_tasks=len({s.task for s in samples}), n_trials=max(d.trials for d in domains),
        n_scored=count[SampleStatus.SCORED], n_agent_failure=count[SampleStatus.AGENT_FAILURE],
        n_infra_failure=count[SampleStatus.INFRA_FAILURE], n_missing=count[SampleStatus.MISSING],
        floors={} if floor is None else {"do_nothing": floor}, seed=how.seed, skipped=how.skipped,
        versions=versions, **({"data_hash": _data(domains)} | own),
    )  # fmt: skip


def _data(domains: Sequence[Domain]) -> str:
    """Of one domain, or of all of an average."""
    every = [d.data_hash for d in domains]
    return every[0] if len(every) == 1 else hashlib.sha256("".join(every).encode()).hexdigest()


def _shared_versions(domains: Sequence[Domain]) -> dict[str, str]:
    """Equal labels once, others joined: "DB+COMMUNICATE; DB+NL_ASSERTION"."""
    keys = sorted({key for d in domains for key in d.versions})
    return {k: "; ".join(dict.fromkeys(d.versions[k] for d in domains if k in d.versions)) for k in keys}
