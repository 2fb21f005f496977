"""Rows of compared calls (`measure`) -> scores with intervals.

Invariant: a score is the mean over tasks of the mean over a task's calls, its interval resamples whole tasks;
a share of nothing has no score.

Names: `<mode>/<metric>` of the policy's responses to all calls, `<mode>/<predictor>/<metric>` of a
predictor's; `<mode>/recorded/...` the same over the calls a record shows the answer of (named so in every
mode, also where the records are withheld). Parts of all calls, exact only: `<mode>/reference/exact`,
`<mode>/probe/exact`, `<mode>/tool/<name>/exact`.

valid          the response keeps the contract
verdict        both refuse, or both answer
shape          F1 of the key paths
grounded       of the truth's leaves that could be copied from what was shown, those reproduced
grounded_share of the truth's leaves, those that could be copied (a property of the calls)
exact          equal JSON
false_success  of the true refusals, those answered
false_refusal  of the true answers, those refused
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envace.bench.stats import cluster_bootstrap
from envace.types import JSON

FidelityRow = dict[str, JSON]
METRICS = (
    "valid",
    "verdict",
    "shape",
    "grounded",
    "grounded_share",
    "exact",
    "false_success",
    "false_refusal",
)
POLICY = "policy"  # rows of the policy's own responses; others are a predictor's


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """`Score(value=0.5, low=0.38, high=0.61, calls=48, tasks=20)`; one task alone has no interval."""

    value: float
    low: float | None
    high: float | None
    calls: int
    tasks: int


def summarise(rows: Sequence[FidelityRow], *, bootstrap: int, seed: int = 0) -> dict[str, Score]:
    """Every score of the module's docstring that the rows have."""
    named: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        mode, own = row["few_shot"], row["by"] == POLICY
        who = "" if own else f"/{row['by']}"
        names = [f"{mode}{who}/{m}" for m in METRICS]
        names += [f"{mode}/recorded{who}/{m}" for m in METRICS if row["recorded"]]
        names += [f"{mode}/{row['kind']}/exact", f"{mode}/tool/{row['tool']}/exact"] if own else []
        for name in names:
            value = row[name.rpartition("/")[2]]
            if value is not None:
                named.setdefault(name, []).append((row["task"], float(value)))
    return {name: score(values, bootstrap, seed) for name, values in named.items()}


def score(values: Iterable[tuple[str, float]], bootstrap: int, seed: int) -> Score:
    """(task, value) pairs as one score. Raises ValueError on none."""
    by_task: dict[str, list[float]] = {}
    for task, value in values:
        by_task.setdefault(task, []).append(value)
    mean, low, high = cluster_bootstrap(by_task, bootstrap, seed)
    return Score(value=mean, low=low, high=high, calls=sum(map(len, by_task.values())), tasks=len(by_task))
