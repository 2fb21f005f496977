"""Which score stands for a run of a benchmark, and whether two runs measured the same thing.

Flows in: runs with their score records. Flows out: the headline; the setups of a run; what sets two apart.
Invariant: the setup is taken over every record that matters, not the first; what is not recorded counts as
different, so that a score from elsewhere is never compared; a headline that is not the official score keeps
its own name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from envace.bench.labels import differing, setup
from envace.report.results import EvalRun
from envace.types import ScoreRecord

Key = tuple[str, str, str]  # subset, metric, source
# benchmark -> the scores that may stand for it, the official one first
HEADLINES: dict[str, tuple[Key, ...]] = {
    "bfcl": (("overall", "reward", "derived"), ("offline_subset", "reward", "derived")),
    "tau2": (("macro", "reward", "derived"),),
    "vita": (("macro", "reward", "derived"),),
    "finmcp": (("all", "tf1", "strict"),),
}
METRIC = {"finmcp": "tf1"}  # of a subset alone; reward elsewhere


def key_of(score: ScoreRecord) -> Key:
    return score.subset, score.metric, score.source


def find(run: EvalRun, key: Key) -> ScoreRecord | None:
    return next((s for s in run.scores if key_of(s) == key), None)


def headline(run: EvalRun) -> ScoreRecord | None:
    """The score that stands for a benchmark: the first one given; of a run of one subset, that subset's.

    Else the withheld official one, which says what it lacks.
    """
    found = [s for key in HEADLINES.get(run.benchmark, ()) if (s := find(run, key)) is not None]
    if given := [s for s in found if s.score is not None]:
        return given[0]
    alone = single_subsets(run)
    return alone[0] if len(alone) == 1 else (found or list(run.scores) or [None])[0]


def is_official(benchmark: str, score: ScoreRecord) -> bool:
    return key_of(score) == HEADLINES.get(benchmark, (key_of(score),))[0]


def single_subsets(run: EvalRun) -> list[ScoreRecord]:
    """The strict scores of the subsets that have one."""
    metric = METRIC.get(run.benchmark, "reward")
    return [s for s in run.scores if (s.metric, s.source) == (metric, "strict") and s.score is not None]


# --- setups -------------------------------------------------------------------------------------------------


def setups(run: EvalRun, subset: str) -> list[dict[str, str]]:
    """Those of a subset's records; more than one only where results of two runs were mixed."""
    made: list[dict[str, str]] = []
    for s in run.scores:
        if s.subset == subset and (own := setup(s)) not in made:
            made.append(own)
    return made


def apart(a: EvalRun, b: EvalRun, subsets: Collection[str] = ()) -> list[str]:
    """What sets two runs apart in these subsets (default: all that both have): ["judge", "data"]."""
    names: dict[str, None] = {}
    have = [{s.subset for s in run.scores} for run in (a, b)]
    for subset in sorted(have[0] & have[1] & set(subsets or have[0])):
        ours, theirs = setups(a, subset), setups(b, subset)
        mixed = len(ours) > 1 or len(theirs) > 1
        names |= dict.fromkeys(["two setups in one run"] if mixed else differing(ours[0], theirs[0]))
    return list(names)


def groups(runs: Sequence[EvalRun]) -> list[list[EvalRun]]:
    """Runs of one benchmark by setup, in order: only those of one group may be held against each other."""
    made: list[list[EvalRun]] = []
    for run in runs:
        group = next((g for g in made if not any(apart(run, other) for other in g)), None)
        if group is None:
            made.append([run])
        else:
            group.append(run)
    return made


def described(run: EvalRun) -> str:
    """The setup of all records in words: "harness x; user u; judge none, j; thinking false; data 1f"."""
    values: dict[str, dict[str, None]] = {}
    for s in run.scores:
        for name, value in setup(s).items():
            values.setdefault(name, {})[value] = None
    parts = {name: [v for v in own if "; " not in v or len(own) == 1] for name, own in values.items()}
    return "; ".join(f"{name} {', '.join(own)}" for name, own in parts.items())
