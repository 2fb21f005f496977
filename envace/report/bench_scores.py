"""Which score stands for a run of an upstream benchmark, and whether two runs measured the same thing.

Invariant: the setup is taken over every record that matters, and what is not recorded counts as different; a
headline that is not the official score keeps its own name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from envace.bench.labels import differing, setup
from envace.report.estimates import Estimate
from envace.report.results import EvalRun
from envace.types import ScoreRecord

Key = tuple[str, str, str]
"""subset, metric, source"""
HEADLINES: dict[str, tuple[Key, ...]] = {
    "bfcl": (("overall", "reward", "derived"), ("offline_subset", "reward", "derived")),
    "tau2": (("macro", "reward", "derived"),),
    "vita": (("macro", "reward", "derived"),),
    "finmcp": (("all", "tf1", "strict"),),
}
"""Benchmark -> the scores that may stand for it, the official one first."""


def key_of(s: ScoreRecord) -> Key:
    return s.subset, s.metric, s.source


def find(run: EvalRun | None, key: Key) -> ScoreRecord | None:
    return next((s for s in run.scores if key_of(s) == key), None) if run else None


def score_of(s: ScoreRecord | None) -> Estimate | None:
    """A score that was given, as an estimate."""
    if s is None or s.score is None:
        return None
    return Estimate(value=s.score, low=s.low, high=s.high, n_tasks=s.n_tasks, trials=s.n_trials)


def headline(run: EvalRun) -> ScoreRecord | None:
    """The score that stands for a benchmark: the first one given; of a run of one subset, that subset's.
    Else the withheld official one, which says what it lacks."""
    found = [s for key in HEADLINES.get(run.benchmark, ()) if (s := find(run, key)) is not None]
    if given := [s for s in found if s.score is not None]:
        return given[0]
    alone = single_subsets(run)
    if len(alone) == 1:
        return alone[0]
    return next(iter(found or run.scores), None)


def is_official(benchmark: str, s: ScoreRecord) -> bool:
    return key_of(s) == HEADLINES.get(benchmark, (key_of(s),))[0]


def single_subsets(run: EvalRun) -> list[ScoreRecord]:
    """The strict scores of the subsets that have one."""
    metric = "tf1" if run.benchmark == "finmcp" else "reward"
    return [s for s in run.scores if (s.metric, s.source) == (metric, "strict") and s.score is not None]


def apart(a: EvalRun, b: EvalRun, subsets: Collection[str] = ()) -> list[str]:
    """What sets two runs apart in these subsets (default: all that both have): ["judge", "data"]."""
    names: dict[str, None] = {}
    both = {s.subset for s in a.scores} & {s.subset for s in b.scores}
    for subset in sorted(both & set(subsets or both)):
        ours, theirs = ([setup(s) for s in run.scores if s.subset == subset] for run in (a, b))
        mixed = any(s != side[0] for side in (ours, theirs) for s in side)  # results of two runs in one
        names |= dict.fromkeys(["two setups in one run"] if mixed else differing(ours[0], theirs[0]))
    return list(names)


def groups(runs: Sequence[EvalRun], benchmark: str) -> list[list[EvalRun]]:
    """Runs of one benchmark by setup, in order: only those of one group may be held against each other."""
    made: list[list[EvalRun]] = []
    for run in (r for r in runs if r.benchmark == benchmark):
        group = next((g for g in made if not any(apart(run, other) for other in g)), None)
        if group is None:
            made.append([run])
        else:
            group.append(run)
    return made
