"""Policies held against each other on the same tasks of a benchmark.

Flows in: finished runs with their samples. Flows out: one table. Invariant: what is differenced is the
published score itself (`envace.bench.compare`); two runs that differ in harness, data, user, judge or
thinking have no difference but the reason why not, and neither has a score that was withheld."""

from __future__ import annotations

from collections.abc import Sequence

from envace.bench.compare import difference, statistic
from envace.report.bench_scores import HEADLINES, Key, apart, find, key_of, single_subsets
from envace.report.estimates import SEED, Estimate
from envace.report.results import EvalRun
from envace.report.table import DASH, MINUS, Table, between, table, verdict
from envace.types import ScoreRecord

COLUMNS = ("benchmark", "score", "comparison", "difference", "95 % interval", "reading", "tasks")
NOTE = (
    "The score itself is differenced, in percentage points, on the tasks that both have scored; each "
    "resample draws the "
    "same tasks for both. Repeating a single trial can move it by more than its interval says."
)


def comparisons(runs: Sequence[EvalRun], n: int) -> Table | None:
    """Every later policy of a benchmark against the first one."""
    rows = []
    for name in dict.fromkeys(r.benchmark for r in runs):
        first, *others = [r for r in runs if r.benchmark == name]
        rows += [row for run in others for row in _rows(run, first, n)]
    return table(COLUMNS, rows, note=NOTE)


def _rows(after: EvalRun, before: EvalRun, n: int) -> list[tuple[str, ...]]:
    keys = _shared(after, before)
    rows = [_row(after, before, key, n) for key in keys]
    return rows or [_refused(after, before, DASH, "no score is given for both")]


def _shared(a: EvalRun, b: EvalRun) -> list[Key]:
    """The headline that both have; else every subset that both have."""
    for key in HEADLINES.get(a.benchmark, ()):
        if all((s := find(run, key)) is not None and s.score is not None for run in (a, b)):
            return [key]
    theirs = {key_of(s) for s in single_subsets(b)}
    mine = [key_of(s) for s in single_subsets(a) if key_of(s) in theirs]
    return [k for k in mine if statistic(a.benchmark, k[0], k[1]) is not None]


def _row(after: EvalRun, before: EvalRun, key: Key, n: int) -> tuple[str, ...]:
    subset, metric, _ = key
    label, what = f"{subset} {metric}", statistic(after.benchmark, subset, metric)
    if what is None:
        return _refused(after, before, label, "no function of task means")
    if names := apart(after, before, {subset, *what.needs}):
        return _refused(after, before, label, f"{', '.join(names)} not the same")
    try:
        found = difference(what, after.samples, before.samples, n, SEED)
    except ValueError as e:  # samples that some other program wrote
        return _refused(after, before, label, str(e))
    if found is None:
        return _refused(after, before, label, "too few tasks that both have scored")
    (value, low, high), tasks = found
    e = Estimate(value=value, low=low, high=high, n_tasks=tasks)
    return (
        after.benchmark,
        label,
        _pair(after, before),
        f"{100 * value:+.1f}",
        between(_points(e), "+.1f"),
        _reading(e, find(after, key)),
        str(tasks),
    )


def _points(e: Estimate) -> Estimate:
    low, high = (None if edge is None else 100 * edge for edge in (e.low, e.high))
    return Estimate(value=100 * e.value, low=low, high=high, n_tasks=e.n_tasks)


def _reading(e: Estimate, score: ScoreRecord | None) -> str:
    single = ", single trial" if score is not None and score.n_trials == 1 else ""
    return verdict(e) + single


def _refused(after: EvalRun, before: EvalRun, label: str, why: str) -> tuple[str, ...]:
    return after.benchmark, label, _pair(after, before), DASH, DASH, f"not compared: {why}", DASH


def _pair(after: EvalRun, before: EvalRun) -> str:
    return f"{after.policy} {MINUS} {before.policy}"
