"""Sample records of tau² -> reward and pass^k of each domain, and the averages over the three of the paper.

Invariant: `strict` counts an agent's failure 0, `upstream` is what tau² itself would print, which leaves out
dialogues that ended in an exception. When more samples than allowed have no score, every number is withheld,
upstream's too; an average over domains exists only when all of its domains do.
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
    floor: float | None = None  # of the agent that does nothing
    identity: summary.Identity = field(default_factory=summary.Identity)

    def values(self, source: str) -> dict[str, Values]:
        """metric -> task -> values; a k that a task has fewer trials than has none."""
        upstream = source == "upstream"
        own = (
            summary.upstream_by_task(self.samples)
            if upstream
            else summary.values_by_task(self.samples, "reward")
        )
        found: dict[str, Values] = {"reward": own}
        for k in range(1, self.trials + 1):
            found[f"pass^{k}"] = chances(own, k) if all(len(v) >= k for v in own.values()) else {}
        return found

    def record(self, metric: str, source: str, found: Interval | tuple[None, None, None]) -> ScoreRecord:
        """One score with the counts and labels of the domain."""
        score, low, high = found
        floors = {} if self.floor is None else {summary.DO_NOTHING: self.floor}
        shared = {**summary.counted(self.samples), "n_trials": self.trials, **self.identity, "source": source}
        number = {"metric": metric, "score": score, "low": low, "high": high, "floors": floors}
        return ScoreRecord(benchmark="tau2", subset=self.name, **number, **shared)


def domain_scores(d: Tau2Domain, *, bootstrap: int = 2000, min_complete: float = 1.0) -> list[ScoreRecord]:
    """reward and pass^1..pass^trials, strict then upstream."""
    complete, seed, records = summary.complete_enough(d.samples, min_complete), d.identity.get("seed", 0), []
    for source in ("strict", "upstream"):
        for metric, own in d.values(source).items():
            found = summary.WITHHELD
            if complete and own:
                found = cluster_bootstrap(own, bootstrap, seed)
                if source == "upstream" and len({len(v) for v in own.values()}) > 1:
                    every = [v for trials in own.values() for v in trials]  # over dialogues, as tau² does
                    found = math.fsum(every) / len(every), None, None
            records.append(d.record(metric, source, found))
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
    lost = [d.name for d in have.values() if not summary.complete_enough(d.samples, min_complete)]
    why += [f"{name}: incomplete" for name in lost]
    values = {name: d.values("strict") for name, d in have.items()}
    records = []
    for metric in next(iter(values.values()), ()):
        strata = {name: own[metric] for name, own in values.items()}
        parts = [d.record(metric, "strict", summary.WITHHELD) for d in have.values()]
        records += summary.averages(
            parts,
            None if why or not all(strata.values()) else strata,
            skipped=(*parts[0].skipped, *why),
            bootstrap=bootstrap,
            all_there=len(have) == len(AVERAGED),
        )
    return records
