"""Two policies on the same tasks: the difference of a benchmark's own number, not of its raw rewards.

Invariant: what is differenced is the score itself, with its strata, weights and sums, over the tasks that
both have scored; each resample draws the same tasks for both. Where both scored the same tasks, it is the
difference of the two published scores. A score that is withheld for lack of a part has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envace.bench.bfcl.scores import DERIVED
from envace.bench.bfcl.tasks import COUNTS as BFCL_CATEGORIES
from envace.bench.finmcp.rows import SUBSETS as FINMCP
from envace.bench.finmcp.scores import COUNTS, SCORES, scored
from envace.bench.stats import Interval, Means, Number, stratified, task_means
from envace.bench.summary import HAS_SCORE, values_by_task
from envace.bench.tau2.tasks import AVERAGED
from envace.bench.tau2.tasks import SUBSETS as TAU2
from envace.bench.vita.tasks import DOMAINS as VITA
from envace.types import SampleRecord

ALL = "all"  # the one stratum of a pooled score


@dataclass(frozen=True, slots=True)
class Statistic:
    """A score as a function of the means over the tasks of its strata."""

    needs: tuple[str, ...]  # subsets without which there is no such score
    of: Callable[[Means], Number]
    pooled: bool = False  # every task in one stratum
    counts: bool = False  # a task is FinMCP's counts, not a reward

    def values(self, samples: Sequence[SampleRecord]) -> dict[str, np.ndarray]:
        """Task -> its mean reward, or its counts summed over trials. ValueError when a sample lacks them."""
        own = [s for s in samples if s.task.split("/", 1)[0] in self.needs]
        if not self.counts:
            by_task = values_by_task(own, "reward")
            return dict(zip(sorted(by_task), task_means(by_task))) if by_task else {}
        sums: dict[str, np.ndarray] = {}
        for s in own:
            if s.status in HAS_SCORE and (lacking := [c for c in COUNTS if c not in s.metrics]):
                raise ValueError(f"sample ({s.task}, {s.trial}) is scored but has no {lacking[0]}")
            if s.status in HAS_SCORE:
                sums[s.task] = sums.get(s.task, 0.0) + np.array([s.metrics[c] for c in COUNTS])
        return sums

    def stratum(self, task: str) -> str:
        return ALL if self.pooled else task.split("/", 1)[0]


def statistic(benchmark: str, subset: str, metric: str) -> Statistic | None:
    """What a score is a function of; None for one that cannot be compared task by task."""
    if benchmark == "finmcp" and metric in SCORES and subset in (ALL, *FINMCP.values()):
        needs = tuple(FINMCP.values()) if subset == ALL else (subset,)
        return Statistic(needs, lambda m: scored(m[ALL])[..., SCORES.index(metric)], pooled=True, counts=True)
    parts = {"bfcl": BFCL_CATEGORIES, "tau2": TAU2, "vita": VITA}.get(benchmark, ())
    if metric != "reward":
        return None
    if subset in parts:
        return Statistic((subset,), _plain)
    if benchmark == "bfcl" and subset in DERIVED:
        return Statistic(DERIVED[subset].needs, DERIVED[subset].of)
    averaged = {"tau2": AVERAGED, "vita": tuple(VITA)}.get(benchmark, ())
    if averaged and subset in ("macro", "micro"):
        return Statistic(averaged, _plain, pooled=subset == "micro")
    return None


def _plain(means: Means) -> Number:
    return sum(means.values()) / len(means)


def difference(
    what: Statistic, after: Sequence[SampleRecord], before: Sequence[SampleRecord], n: int, seed: int
) -> tuple[Interval, int] | None:
    """after - before, and the number of tasks; None when a subset of the score has no task that both have
    scored.
    """
    a, b = what.values(after), what.values(before)
    both, pairs = sorted(a.keys() & b.keys()), dict[str, list[np.ndarray]]()
    if not both or not (what.counts or set(what.needs) <= {task.split("/", 1)[0] for task in both}):
        return None
    for task in both:  # in the order of the tasks' names
        pairs.setdefault(what.stratum(task), []).append(np.stack([a[task], b[task]], axis=-1))
    strata = {name: np.array(own, float) for name, own in pairs.items()}  # [tasks, ..., 2]

    def gain(means: Means) -> Number:
        new, old = ({name: m[..., side] for name, m in means.items()} for side in (0, 1))
        return what.of(new) - what.of(old)

    return stratified(strata, gain, n, seed), len(both)


def average(parts: Mapping[str, tuple[Statistic, Sequence[SampleRecord]]], n: int, seed: int) -> Interval:
    """Plain mean of the scores of several benchmarks; tasks are drawn within each stratum of each of them."""
    strata: dict[str, list[np.ndarray]] = {}
    for name, (what, samples) in parts.items():
        for task, value in sorted(what.values(samples).items()):
            strata.setdefault(f"{name} {what.stratum(task)}", []).append(value)

    def of(means: Means) -> Number:
        own = {n: {k[len(n) + 1 :]: m for k, m in means.items() if k.startswith(f"{n} ")} for n in parts}
        return sum(what.of(own[name]) for name, (what, _) in parts.items()) / len(parts)

    return stratified({name: np.array(v, float) for name, v in strata.items()}, of, n, seed)
