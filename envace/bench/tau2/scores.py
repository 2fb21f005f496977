"""Sample records of tau² -> scores: the reward and pass^k of each domain, and the averages over the three of
the paper.

Invariant: `strict` counts an agent's failure 0, `upstream` is what tau² itself would print, which leaves out
dialogues that ended in an exception. When more samples than allowed have no score, every number is withheld,
upstream's too. An average over domains exists only when all of its domains do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envace.bench import summary
from envace.bench.stats import Interval, Values, chances, cluster_bootstrap
from envace.bench.tau2.tasks import AVERAGED
from envace.types import SampleRecord, ScoreRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Domain:
    """The samples of one subset, and what its scores are labelled with."""

    name: str
    samples: Sequence[SampleRecord]
    trials: int
    floor: float | None = None
    """Of the agent that does nothing."""
    identity: summary.Identity = field(default_factory=summary.Identity)


def domain_scores(d: Tau2Domain, *, bootstrap: int = 2000, min_complete: float = 1.0) -> list[ScoreRecord]:
    """reward and pass^1..pass^trials, strict then upstream."""
    complete, seed, records = summary.complete_enough(d.samples, min_complete), d.identity.get("seed", 0), []
    by_source = {
        "strict": summary.values_by_task(d.samples, "reward"),
        "upstream": summary.upstream_by_task(d.samples),
    }
    for source, values in by_source.items():
        for metric, own in _per_metric(values, d.trials).items():
            found = _interval(own, source, bootstrap, seed) if complete and own else summary.WITHHELD
            records.append(_record(d, metric, source, found))
    return records


def average_scores(
    domains: Sequence[Tau2Domain],
    absent: Mapping[str, str],
    *,
    bootstrap: int = 2000,
    min_complete: float = 1.0,
) -> list[ScoreRecord]:
    """macro (plain mean of the domains) and micro (every task equal) of each metric.

    Withheld, with the reasons of `absent`, unless all domains are there and complete.
    """
    have = {d.name: d for name in AVERAGED for d in domains if d.name == name}
    why = [absent[name] for name in AVERAGED if name not in have]
    why += [
        f"{d.name}: incomplete" for d in have.values() if not summary.complete_enough(d.samples, min_complete)
    ]
    values = {n: _per_metric(summary.values_by_task(d.samples, "reward"), d.trials) for n, d in have.items()}
    records = []
    for metric in next(iter(values.values()), ()):
        strata = {name: own[metric] for name, own in values.items()}
        parts = [_record(d, metric, "strict", summary.WITHHELD) for d in have.values()]
        records += summary.averages(
            parts,
            None if why or not all(strata.values()) else strata,
            skipped=(*parts[0].skipped, *why),
            bootstrap=bootstrap,
            all_there=len(have) == len(AVERAGED),
        )
    return records


def _record(
    d: Tau2Domain, metric: str, source: str, found: tuple[float | None, float | None, float | None]
) -> ScoreRecord:
    score, low, high = found
    floors = {} if d.floor is None else {summary.DO_NOTHING: d.floor}
    shared = {**summary.counted(d.samples), "n_trials": d.trials, **d.identity, "source": source}
    return ScoreRecord(
        benchmark="tau2",
        subset=d.name,
        metric=metric,
        score=score,
        low=low,
        high=high,
        floors=floors,
        **shared,
    )


def _per_metric(values: Values, trials: int) -> dict[str, Values]:
    """metric -> task -> values; empty for a k that a task has fewer trials than."""
    found: dict[str, Values] = {"reward": values}
    for k in range(1, trials + 1):
        found[f"pass^{k}"] = chances(values, k) if all(len(v) >= k for v in values.values()) else {}
    return found


def _interval(values: Values, source: str, bootstrap: int, seed: int) -> Interval:
    """strict: over tasks of the mean over trials. upstream: over dialogues, as tau² does; unequal trials have
    no interval.
    """
    if source == "strict" or len({len(v) for v in values.values()}) == 1:
        return cluster_bootstrap(values, bootstrap, seed)
    every = [v for trials in values.values() for v in trials]
    return math.fsum(every) / len(every), None, None
