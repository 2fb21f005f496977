"""Means and differences with intervals, of one evaluation or of several seeds pooled.

Invariant: a missing or unscored sample is left out and counted, an agent's failure counts 0; a comparison
uses only tasks that both sides have scored; intervals resample tasks, so seeds pooled on the same tasks do
not count as more tasks, and a pooled interval says nothing about other seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envace.bench.fidelity.scores import Score
from envace.bench.stats import cluster_bootstrap, paired_bootstrap
from envace.report.results import EvalRun, FidelityRun
from envace.types import JSON, SampleStatus, ScoreRecord

SEED = 0
"""Of the bootstrap: the same files give the same report."""
Values = Mapping[str, Sequence[float]]
"""Task -> one value a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean or a difference with its 95 % interval, bootstrapped over tasks."""

    value: float
    low: float | None = None
    high: float | None = None
    n_tasks: int = 0
    trials: int = 0

    @property
    def decided(self) -> bool:
        """The interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def minus(self, floor: float) -> Estimate:
        """The distance to a number without an interval of its own."""
        low, high = (None if edge is None else edge - floor for edge in (self.low, self.high))
        return replace(self, value=self.value - floor, low=low, high=high)


def number(value: JSON) -> float | None:
    """A finite number as float, anything else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def measured(s: Score | None) -> Estimate | None:
    """A fidelity score as an estimate."""
    return None if s is None else Estimate(value=s.value, low=s.low, high=s.high, n_tasks=s.tasks)


# --- one evaluation -----------------------------------------------------------------------------------------


def metric_of(run: EvalRun) -> str:
    """The headline metric: success where it is measured, else the first one reported."""
    names = [s.metric for s in run.scores] + [k for s in run.samples[:1] for k in s.metrics]
    return "success" if "success" in names else (names or ["reward"])[0]


def values_by_task(run: EvalRun, metric: str) -> dict[str, list[float]]:
    """Task -> one value a scored trial (strict: a failure of the agent is 0)."""
    values: dict[str, list[float]] = {}
    for s in run.samples:
        value = 0.0 if s.status == SampleStatus.AGENT_FAILURE else None
        if s.status == SampleStatus.SCORED:
            value = number(s.metrics.get(metric) if s.metrics else s.reward)  # some give a reward only
        if value is not None:
            values.setdefault(s.task, []).append(value)
    return values


def trials_of(run: EvalRun) -> int:
    """Trials a task, as far as seen."""
    if run.samples:
        return len({s.trial for s in run.samples})
    return max([0, *(s.n_trials for s in run.scores)])


def record_of(run: EvalRun, metric: str) -> ScoreRecord | None:
    found = [s for s in run.scores if s.metric == metric]
    return next((s for s in found if s.source == "strict"), found[0] if found else None)


def floors_of(run: EvalRun) -> dict[str, float]:
    """The headline metric of agents without skill on the same tasks: {"do nothing": 0.0}."""
    record = record_of(run, metric_of(run))
    return {k.replace("_", " "): v for k, v in record.floors.items()} if record else {}


def estimate(run: EvalRun, n: int, metric: str = "") -> Estimate | None:
    """One metric (default: the headline) of one evaluation: as its stage published it, else from its samples.
    None when there is neither, or when the stage withheld the score because samples are missing."""
    metric = metric or metric_of(run)
    s, values = record_of(run, metric), values_by_task(run, metric)
    if s is not None and s.score is None:
        return None
    if s is not None and s.score is not None and (s.low is not None or not values):
        return Estimate(value=s.score, low=s.low, high=s.high, n_tasks=s.n_tasks, trials=trials_of(run))
    return mean(values, n, trials_of(run)) if values else None


# --- several ------------------------------------------------------------------------------------------------


def mean(values: Values, n: int, trials: int = 0) -> Estimate:
    value, low, high = cluster_bootstrap(values, n, SEED)
    return Estimate(value=value, low=low, high=high, n_tasks=len(values), trials=trials)


def paired(after: Values, before: Values, n: int, trials: int = 0) -> Estimate | None:
    """after - before over the tasks both have; None without any."""
    both = sorted(after.keys() & before.keys())
    if not both:
        return None
    a, b = ({t: side[t] for t in both} for side in (after, before))
    value, low, high = paired_bootstrap(a, b, n, SEED)
    return Estimate(value=value, low=low, high=high, n_tasks=len(both), trials=trials)


def pool(many: Sequence[Values]) -> dict[str, list[float]]:
    """The values of several seeds of one arm, task by task."""
    values: dict[str, list[float]] = {}
    for one in many:
        for task, own in one.items():
            values.setdefault(task, []).extend(own)
    return values


def usable(runs: Sequence[EvalRun | None], n: int, metric: str = "") -> list[EvalRun]:
    """Those with a score that was not withheld."""
    return [r for r in runs if r is not None and estimate(r, n, metric) is not None]


def pooled(runs: Sequence[EvalRun], n: int) -> Estimate | None:
    """The headline metric over all seeds."""
    runs = usable(runs, n)
    if len(runs) == 1:
        return estimate(runs[0], n)
    values = pool([values_by_task(r, metric_of(r)) for r in runs])
    return mean(values, n, sum(map(trials_of, runs))) if values else None


def difference(
    before: Sequence[EvalRun | None], after: Sequence[EvalRun | None], n: int, metric: str = ""
) -> Estimate | None:
    """after - before, each pooled over its runs; without samples the plain difference of two, without
    interval. None when either side is absent or withheld."""
    first, last = usable(before, n, metric), usable(after, n, metric)
    if not first or not last:
        return None
    metric = metric or metric_of(last[0])
    a, b = (pool([values_by_task(r, metric) for r in runs]) for runs in (last, first))
    trials = min(sum(map(trials_of, runs)) for runs in (first, last))
    if (found := paired(a, b, n, trials)) is not None:
        return found
    x, y = estimate(last[0], n, metric), estimate(first[0], n, metric)
    assert x is not None and y is not None  # both are usable
    return Estimate(value=x.value - y.value, n_tasks=min(x.n_tasks, y.n_tasks), trials=trials)


# --- fidelity -----------------------------------------------------------------------------------------------


def call_values(
    run: FidelityRun, mode: str, metric: str, *, recorded: bool = False
) -> dict[str, list[float]]:
    """Task -> one value a call of the policy's own responses in a mode."""
    values: dict[str, list[float]] = {}
    for row in run.calls:
        own = row.get("by") == "policy" and row.get("few_shot") == mode
        value = number(row.get(metric)) if own and (row.get("recorded") or not recorded) else None
        if value is not None:
            values.setdefault(str(row.get("task")), []).append(value)
    return values


def gap_values(run: FidelityRun) -> dict[str, list[float]]:
    """Task -> rehearsed minus true success, a value a trial."""
    values: dict[str, list[float]] = {}
    for row in run.plays:
        rehearsed, true = number(row.get("rehearsed")), number(row.get("true"))
        if rehearsed is not None and true is not None:
            values.setdefault(str(row.get("task")), []).append(rehearsed - true)
    return values
