"""VitaBench's sample records -> score records.

Flows in: the completed samples and the floor of each subset. Flows out: strict and upstream scores a subset, pass^k
and pass@k, and the plain mean over the subsets that were run.
Invariant: `strict` counts an agent's failure 0 and is withheld below completeness; `upstream` is the mean over what
upstream kept, beside it; domains that were not run are named, never counted as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envace.bench.stats import LEVEL, cluster_bootstrap
from envace.bench.summary import summarise, values_by_task
from envace.types import SampleRecord, ScoreRecord, replace

METRICS = ("reward", "rubrics", "steps", "calls")
COUNTS = ("n_tasks", "n_scored", "n_agent_failure", "n_infra_failure", "n_missing")
Values = dict[str, list[float]]


def records(
    subsets: Sequence[str],
    samples: Sequence[SampleRecord],
    floors: dict[str, float],
    *,
    absent: tuple[str, ...] = (),
    min_complete: float = 1.0,
    bootstrap: int = 2000,
    **identity: Any,
) -> list[ScoreRecord]:
    shared = {"benchmark": "vita", "bootstrap": bootstrap, **identity}
    made, strict = [], {}
    for subset in subsets:
        own = [s for s in samples if s.task.startswith(subset + "/")]
        planned = [(s.task, s.trial) for s in own]
        floor = {"reward": {"do_nothing": floors[subset]}}
        base = summarise(
            own, planned, subset=subset, metrics=METRICS, floors=floor, min_complete=min_complete, **shared
        )
        strict[subset] = (base[0], values_by_task(own, "reward"))
        made += base + _repeated(base[0], strict[subset][1], bootstrap) + [_upstream(base[0], own)]
    return made + [_macro(strict, absent, bootstrap)] if made else made


def _repeated(base: ScoreRecord, values: Values, bootstrap: int) -> list[ScoreRecord]:
    """pass^k (all of k trials succeed) and pass@k (one of k does), averaged over tasks."""
    made = []
    for k in range(2, base.n_trials + 1):
        for name, chance in (("pass_hat", all_of), ("pass_at", any_of)):
            score, low, high = _averaged(base, values, k, chance, bootstrap)
            made.append(replace(base, metric=f"{name}_{k}", score=score, low=low, high=high, floors={}))
    return made


def _averaged(
    base: ScoreRecord, values: Values, k: int, chance: Callable[[int, int, int], float], bootstrap: int
) -> tuple[float | None, float | None, float | None]:
    if base.score is None or any(len(v) < k for v in values.values()):
        return None, None, None
    chances = {t: [chance(len(v), sum(x >= 1 for x in v), k)] for t, v in values.items()}
    return cluster_bootstrap(chances, bootstrap, base.seed)


def all_of(n: int, won: int, k: int) -> float:
    return math.comb(won, k) / math.comb(n, k)


def any_of(n: int, won: int, k: int) -> float:
    return 1 - math.comb(n - won, k) / math.comb(n, k)


def _upstream(base: ScoreRecord, samples: Sequence[SampleRecord]) -> ScoreRecord:
    """The mean over the simulations upstream kept; what it dropped is not in it."""
    kept = [s.metrics["upstream"] for s in samples if "upstream" in s.metrics]
    score = float(np.mean(kept)) if kept else None
    return replace(base, source="upstream", score=score, low=None, high=None, n_scored=len(kept), floors={})


def _macro(
    strict: dict[str, tuple[ScoreRecord, Values]], absent: tuple[str, ...], bootstrap: int
) -> ScoreRecord:
    """Plain mean of the subsets' rewards; tasks are resampled inside each subset."""
    bases = [b for b, _ in strict.values()]
    scores = [b.score for b in bases]
    score = low = high = None
    if all(s is not None for s in scores):
        score = float(np.mean(scores))
        low, high = _stratified([v for _, v in strict.values()], bootstrap, bases[0].seed)
    counts = {f: sum(getattr(b, f) for b in bases) for f in COUNTS}
    return replace(
        bases[0], subset="macro", source="derived", score=score, low=low, high=high, skipped=absent,
        floors={"do_nothing": float(np.mean([b.floors["do_nothing"] for b in bases]))}, **counts,
    )  # fmt: skip


def _stratified(groups: Sequence[Values], n: int, seed: int) -> tuple[float | None, float | None]:
    if any(len(g) < 2 for g in groups):
        return None, None
    rng = np.random.default_rng(seed)
    means = [np.array([np.mean(g[t]) for t in sorted(g)]) for g in groups]
    drawn = np.mean([m[rng.integers(len(m), size=(n, len(m)))].mean(axis=1) for m in means], axis=0)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
