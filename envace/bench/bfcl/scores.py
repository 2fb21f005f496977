"""Sample records -> score records of BFCL: each category, each group, the overall.

Flows in: samples, the plan, floors. Flows out: `strict` and `upstream` records of each category, then `derived`
(from the strict scores) and `upstream` records of the groups.
Invariant: every number is withheld when more samples than allowed lack a score. `upstream` is what BFCL would print
for the rows it saw, infrastructure failures within the allowance counted as it counts them, and is never the headline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envace.bench.bfcl.overall import ALWAYS, DERIVED, estimate
from envace.bench.stats import cluster_bootstrap
from envace.bench.summary import Plan, complete_plan, plan, summarise, upstream_by_task, values_by_task
from envace.types import SampleRecord, ScoreRecord, replace

METRIC = "reward"
Scores = dict[str, dict[str, list[float]]]  # category -> task -> one value a trial


def score_records(
    samples: Sequence[SampleRecord],
    tasks: Mapping[str, Sequence[str]],
    trials: int,
    *,
    floors: Mapping[str, float],
    skipped: Mapping[str, str],
    min_complete: float,
    bootstrap: int,
    seed: int,
    **identity: Any,
) -> list[ScoreRecord]:
    """`tasks`: category -> its tasks. `floors`: category -> what doing nothing scores. `skipped`: category -> why."""
    shared = {
        "benchmark": "bfcl",
        "bootstrap": bootstrap,
        "seed": seed,
        "min_complete": min_complete,
        **identity,
    }
    records: list[ScoreRecord] = []
    strict: Scores = {}
    upstream: Scores = {}
    for category, names in tasks.items():
        own = [s for s in samples if s.task.split("/", 1)[0] == category]
        pair = _category(category, own, plan(names, trials), {"do_nothing": floors[category]}, shared)
        records += pair
        if pair[0].score is not None:
            strict[category] = values_by_task(own, METRIC)
            upstream[category] = upstream_by_task(own)
    for name in _shown(tasks):
        records += _group(name, records, strict, upstream, floors, skipped, bootstrap, seed)
    return records


def _category(
    category: str,
    own: Sequence[SampleRecord],
    planned: Plan,
    floors: dict[str, float],
    shared: dict[str, Any],
) -> list[ScoreRecord]:
    (strict,) = summarise(
        own, planned, metrics=[METRIC], subset=category, floors={METRIC: floors}, source="strict", **shared
    )
    counted = {} if strict.score is None else upstream_by_task(complete_plan(own, planned))
    score, low, high = (
        cluster_bootstrap(counted, shared["bootstrap"], shared["seed"]) if counted else (None, None, None)
    )
    return [strict, replace(strict, source="upstream", score=score, low=low, high=high)]


def _shown(tasks: Mapping[str, Any]) -> list[str]:
    return [n for n, d in DERIVED.items() if n in ALWAYS or any(c in tasks for c in d.needs)]


def _group(
    name: str,
    records: Sequence[ScoreRecord],
    strict: Scores,
    upstream: Scores,
    floors: Mapping[str, float],
    skipped: Mapping[str, str],
    bootstrap: int,
    seed: int,
) -> list[ScoreRecord]:
    """The derived record and BFCL's, from the categories' `records`; at least one category was asked for."""
    needs = DERIVED[name].needs
    parts = [r for r in records if r.subset in needs and r.source == "strict"]
    template = _summed(parts) if parts else replace(records[0], **dict.fromkeys(_COUNTED, 0))
    asked = {r.subset for r in parts}
    lacking = [f"{c}: {skipped.get(c, 'not asked for')}" for c in needs if c not in asked]
    withheld = [f"{c}: withheld" for c in needs if c in asked and c not in strict]
    floor = {"do_nothing": DERIVED[name].of(floors)} if all(c in floors for c in needs) else {}
    made = []
    for source, values in (("derived", strict), ("upstream", upstream)):
        score, low, high = estimate(name, values, bootstrap, seed) or (None, None, None)
        made.append(
            replace(
                template,
                subset=name,
                source=source,
                score=score,
                low=low,
                high=high,
                floors=floor,
                skipped=(*lacking, *(withheld if source == "derived" else ())),
            )  # fmt: skip
        )
    return made


_COUNTED = ("n_tasks", "n_scored", "n_agent_failure", "n_infra_failure", "n_missing")


def _summed(parts: Sequence[ScoreRecord]) -> ScoreRecord:
    return replace(parts[0], **{field: sum(getattr(p, field) for p in parts) for field in _COUNTED})
