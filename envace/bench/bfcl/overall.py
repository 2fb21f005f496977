"""BFCL's groups and weighted overall from the scores of its categories, with intervals.

Flows in: category -> one value a task. Flows out: derived numbers, or the categories they lack.
Invariant: a number is withheld (None) while a category that it needs is absent; BFCL itself counts an absent
category as 0. On a full run the numbers equal BFCL's own table.

`overall` is BFCL's: 10 % non-live, 10 % live, 10 % irrelevance, 30 % multi turn, 40 % agentic. `offline_subset`
is ours: the same weights without the categories that need the open web or a second model, so 10, 10, 10, 30 and
20 % for the mean of memory_kv and memory_rec_sum, divided by 80 %. live_relevance counts in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envace.bench.bfcl.categories import ALL, COUNTS, LIVE, MEMORY, MULTI_TURN, NON_LIVE, WEB_SEARCH
from envace.bench.stats import Interval, Means, stratified, task_means

Values = Means  # a category is a stratum
IRRELEVANCE = ("irrelevance", "live_irrelevance")
AST_LIVE = tuple(c for c in LIVE if c not in ("live_irrelevance", "live_relevance"))
OFFLINE_MEMORY = ("memory_kv", "memory_rec_sum")


def _mean(v: Values, categories: tuple[str, ...]) -> Any:
    return sum(v[c] for c in categories) / len(categories)


def _non_live(v: Values) -> Any:
    simple = _mean(v, ("simple_python", "simple_java", "simple_javascript"))
    return (simple + v["multiple"] + v["parallel"] + v["parallel_multiple"]) / 4


def _live(v: Values) -> Any:
    """Every entry counts alike. A limited run weighs a category by its full size too: it estimates the full run."""
    return sum(COUNTS[c] * v[c] for c in AST_LIVE) / sum(COUNTS[c] for c in AST_LIVE)


def _agentic(v: Values) -> Any:
    return (_mean(v, WEB_SEARCH) + _mean(v, MEMORY)) / 2


def _without_agentic(v: Values) -> Any:
    return 0.1 * _non_live(v) + 0.1 * _live(v) + 0.1 * _mean(v, IRRELEVANCE) + 0.3 * _mean(v, MULTI_TURN)


@dataclass(frozen=True, slots=True)
class Derived:
    needs: tuple[str, ...]
    of: Callable[[Values], Any]


_COUNTED = tuple(c for c in ALL if c != "live_relevance")
_OFFLINE = tuple(c for c in _COUNTED if c not in (*WEB_SEARCH, "memory_vector"))
DERIVED = {
    "non_live": Derived(tuple(c for c in NON_LIVE if c != "irrelevance"), _non_live),
    "live": Derived(AST_LIVE, _live),
    "irrelevance_mean": Derived(IRRELEVANCE, lambda v: _mean(v, IRRELEVANCE)),
    "multi_turn": Derived(MULTI_TURN, lambda v: _mean(v, MULTI_TURN)),
    "web_search": Derived(WEB_SEARCH, lambda v: _mean(v, WEB_SEARCH)),
    "memory": Derived(MEMORY, lambda v: _mean(v, MEMORY)),
    "agentic": Derived(MEMORY + WEB_SEARCH, _agentic),
    "offline_subset": Derived(_OFFLINE, lambda v: (_without_agentic(v) + 0.2 * _mean(v, OFFLINE_MEMORY)) / 0.8),
    "overall": Derived(_COUNTED, lambda v: _without_agentic(v) + 0.4 * _agentic(v)),
}  # fmt: skip
ALWAYS = (
    "offline_subset",
    "overall",
)  # shown, even when withheld; the others only where a category of theirs ran


def estimate(
    name: str, values: Mapping[str, Mapping[str, list[float]]], n: int, seed: int
) -> Interval | None:
    """The derived number with its interval from `n` resamples of the tasks within each category; None while a
    category is absent. `values`: category -> task -> one value a trial."""
    derived = DERIVED[name]
    if any(not values.get(c) for c in derived.needs):
        return None
    return stratified({c: task_means(values[c]) for c in derived.needs}, derived.of, n, seed)
