"""VitaBench's sample records -> score records.

Flows in: the completed samples and the floor of each subset. Flows out: strict and upstream scores a subset, pass^k
and pass@k, and two averages over the four domains: macro (plain mean of the domains) and micro (every task equal).
Invariant: `strict` counts an agent's failure 0; `upstream` is the mean over what upstream kept, beside it; both are
withheld below completeness, and the averages, with the reasons, unless every domain is there and complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envace.bench.stats import Interval, cluster_bootstrap, stratified, task_means
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
    return made + _averages(strict, absent, bootstrap) if made else made


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
    kept = [] if base.score is None else kept
    score = float(np.mean(kept)) if kept else None
    return replace(base, source="upstream", score=score, low=None, high=None, n_scored=len(kept), floors={})


def _averages(
    strict: dict[str, tuple[ScoreRecord, Values]], absent: tuple[str, ...], bootstrap: int
) -> list[ScoreRecord]:
    """macro and micro reward; a withheld one names the domains it lacks."""
    bases, values = [b for b, _ in strict.values()], {name: v for name, (_, v) in strict.items()}
    why = [f"{name}: not asked for" for name in absent]
    why += [f"{b.subset}: incomplete" for b in bases if b.score is None]
    floors = np.array([b.floors["do_nothing"] for b in bases])
    sizes = np.array([b.n_tasks for b in bases])
    shared = {f: sum(getattr(b, f) for b in bases) for f in COUNTS} | {"skipped": tuple(why)}
    made = []
    for name, of, floor in (
        ("macro", _macro, floors.mean()),
        ("micro", _micro, (floors * sizes).sum() / sizes.sum()),
    ):
        score, low, high = (None, None, None) if why else of(values, bootstrap, bases[0].seed)
        own = {} if absent else {"do_nothing": float(floor)}
        made.append(
            replace(
                bases[0], subset=name, source="derived", score=score, low=low, high=high, floors=own, **shared
            )
        )
    return made


def _macro(values: dict[str, Values], n: int, seed: int) -> Interval:
    strata = {name: task_means(tasks) for name, tasks in values.items()}
    return stratified(strata, lambda m: sum(m.values()) / len(m), n, seed)


def _micro(values: dict[str, Values], n: int, seed: int) -> Interval:
    return cluster_bootstrap({task: v for tasks in values.values() for task, v in tasks.items()}, n, seed)
