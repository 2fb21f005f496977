"""Sample records -> score records of BFCL: each category, each group, the weighted overall.

Invariant: a number is withheld (None) when more samples than allowed lack a score, a group's also while one
of its categories is absent; BFCL itself counts an absent category as 0. On a full run the numbers equal
BFCL's own table. `upstream` is what BFCL would print for the rows it saw, and is never the headline.

`overall` is BFCL's: 10 % non-live, 10 % live, 10 % irrelevance, 30 % multi turn, 40 % agentic.
`offline_subset` is ours: the same weights without what needs the open web or a second model, so 10, 10, 10,
30 and 20 % for the mean of memory_kv and memory_rec_sum, divided by 80 %. live_relevance counts in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Unpack

from envace.bench import summary
from envace.bench.bfcl import tasks as bfcl
from envace.bench.scoring import Scoring
from envace.bench.stats import Interval, Means, Number, Values, cluster_bootstrap, stratified, task_means
from envace.types import SampleRecord, ScoreRecord, replace

AST_LIVE = bfcl.LIVE[:4]
COUNTED = tuple(c for c in bfcl.ALL if c != "live_relevance")
ALWAYS = ("offline_subset", "overall")  # shown even when withheld; others only where a category of theirs ran


class DerivedScore(NamedTuple):
    """A number over several categories; a category is a stratum."""

    needs: tuple[str, ...]
    of: Callable[[Means], Number]


def _mean(v: Means, categories: tuple[str, ...]) -> Number:
    return sum(v[c] for c in categories) / len(categories)


def _non_live(v: Means) -> Number:
    return (_mean(v, bfcl.SIMPLE) + v["multiple"] + v["parallel"] + v["parallel_multiple"]) / 4


def _live(v: Means) -> Number:
    """Every entry counts alike; a limited run weighs a category by its full size too, to estimate the full
    run.
    """
    return sum(bfcl.COUNTS[c] * v[c] for c in AST_LIVE) / sum(bfcl.COUNTS[c] for c in AST_LIVE)


def _agentic(v: Means) -> Number:
    return (_mean(v, bfcl.WEB_SEARCH) + _mean(v, bfcl.MEMORY)) / 2


def _without_agentic(v: Means) -> Number:
    irrelevance, turns = _mean(v, bfcl.IRRELEVANCE), _mean(v, bfcl.MULTI_TURN)
    return 0.1 * _non_live(v) + 0.1 * _live(v) + 0.1 * irrelevance + 0.3 * turns


def _offline(v: Means) -> Number:
    return (_without_agentic(v) + 0.2 * _mean(v, ("memory_kv", "memory_rec_sum"))) / 0.8


DERIVED = {
    "non_live": DerivedScore(bfcl.NON_LIVE[:6], _non_live),
    "live": DerivedScore(AST_LIVE, _live),
    "irrelevance_mean": DerivedScore(bfcl.IRRELEVANCE, lambda v: _mean(v, bfcl.IRRELEVANCE)),
    "multi_turn": DerivedScore(bfcl.MULTI_TURN, lambda v: _mean(v, bfcl.MULTI_TURN)),
    "web_search": DerivedScore(bfcl.WEB_SEARCH, lambda v: _mean(v, bfcl.WEB_SEARCH)),
    "memory": DerivedScore(bfcl.MEMORY, lambda v: _mean(v, bfcl.MEMORY)),
    "agentic": DerivedScore(bfcl.AGENTIC, _agentic),
    "offline_subset": DerivedScore(tuple(c for c in COUNTED if c in bfcl.GROUPS["offline"]), _offline),
    "overall": DerivedScore(COUNTED, lambda v: _without_agentic(v) + 0.4 * _agentic(v)),
}


def estimate(name: str, values: Mapping[str, Values], n: int, seed: int) -> Interval | None:
    """The derived number, its interval from `n` resamples of each category's tasks; None while one is absent.

    values: category -> task -> one value per trial.
    """
    needs, of = DERIVED[name]
    if any(not values.get(c) for c in needs):
        return None
    return stratified({c: task_means(values[c]) for c in needs}, of, n, seed)


def score_records(
    samples: Sequence[SampleRecord],
    tasks: Mapping[str, Sequence[str]],
    trials: int,
    *,
    floors: Mapping[str, float],
    skipped: Mapping[str, str],
    **how: Unpack[Scoring],
) -> list[ScoreRecord]:
    """`strict` and `upstream` of each category, then `derived` (from the strict) and `upstream` of the
    groups.

    tasks: category -> its tasks. floors: category -> what doing nothing scores. skipped: category -> why.
    """
    records: list[ScoreRecord] = []
    strict: dict[str, Values] = {}
    upstream: dict[str, Values] = {}
    n, seed = how.get("bootstrap", 2000), how.get("seed", 0)
    for category, names in tasks.items():
        own = [s for s in samples if s.task.split("/", 1)[0] == category]
        (record,) = summary.summarise(
            own,
            summary.plan(names, trials),
            benchmark="bfcl",
            subset=category,
            metrics=["reward"],
            floors={"reward": {summary.DO_NOTHING: floors[category]}},
            **how,
        )
        counted = summary.upstream_by_task(own)
        printed = cluster_bootstrap(counted, n, seed) if counted else None
        records += [record, summary.upstream_record(record, printed)]
        if record.score is not None:
            strict[category], upstream[category] = summary.values_by_task(own, "reward"), counted
    for name, (needs, _) in DERIVED.items():
        if name in ALWAYS or any(c in tasks for c in needs):
            base = _over(name, records, floors, skipped)
            withheld = tuple(f"{c}: withheld" for c in needs if c in tasks and c not in strict)
            for source, values, why in (("derived", strict, withheld), ("upstream", upstream, ())):
                score, low, high = estimate(name, values, n, seed) or summary.WITHHELD
                said = {"source": source, "skipped": (*base.skipped, *why)}
                records.append(replace(base, score=score, low=low, high=high, **said))
    return records


def _over(
    name: str, records: Sequence[ScoreRecord], floors: Mapping[str, float], skipped: Mapping[str, str]
) -> ScoreRecord:
    """What the records of a group share: its categories' counts, its floor, and which were not run."""
    needs, of = DERIVED[name]
    parts = [r for r in records if r.subset in needs and r.source == "strict"]
    if not parts:  # at least one category was asked for, though none of these
        nobody = dict.fromkeys(("n_tasks", "n_scored", "n_agent_failure", "n_infra_failure", "n_missing"), 0)
        parts = [replace(records[0], subset="", **nobody)]
    asked = {r.subset for r in parts}
    lacking = tuple(f"{c}: {skipped.get(c, 'not asked for')}" for c in needs if c not in asked)
    floor = {summary.DO_NOTHING: of(floors)} if all(c in floors for c in needs) else {}
    return replace(summary.summed(parts), subset=name, floors=floor, skipped=lacking)
