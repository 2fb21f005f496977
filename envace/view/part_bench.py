"""Upstream benchmarks: headline scores, every score, and policies held against each other.

Flows in: `Results.bench`. Flows out: one section.
Invariant: a score is shown with its tasks, trials, floors, what was left out and who judged it; a single trial says
so; the paper's numbers stand in a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from envace.params import Params
from envace.types import ScoreRecord
from envace.view import paper, plots
from envace.view.estimates import paired, values_by_task
from envace.view.results import EvalRun, Results
from envace.view.section import Section, captioned
from envace.view.table import DASH, MINUS, Table, difference_cells, few, fixed, table, trials

# benchmark -> (subset, metric, source) of the score that stands for it, the first that was given
HEADLINES = {
    "bfcl": (("overall", "reward", "derived"), ("offline_subset", "reward", "derived")),
    "tau2": (("macro", "reward", "derived"),),
    "vita": (("macro", "reward", "derived"),),
    "finmcp": (("all", "tf1", "strict"),),
}
LEAD = (
    "Each in the harness its authors publish, run as a process of its own. Strict: a failure of the agent counts 0. "
    "Upstream: as the harness counts, which may leave failures out. Intervals are 95 %, bootstrapped over tasks."
)
NONE = "No upstream benchmark was run (bench.policies, bench.benchmarks), so the paper's numbers are not shown beside ours."


def bench(results: Results, params: Params) -> Section:
    """The section, with the figure, the tables and the paper's values for the benchmarks that ran."""
    run = [r for r in results.bench if r.finished]
    return Section(
        id="bench", title="Upstream benchmarks", wide=True, lead=LEAD if run else NONE,
        plots=tuple(filter(None, (_figure(run, b) for b in params.bench.benchmarks))),
        tables=captioned(
            ("Headline scores", headlines(run)),
            ("On the same tasks", comparisons(run, params.report.bootstrap)),
            ("Every score", every(run)),
            ("Paper", paper.printed(sorted({r.benchmark for r in run}))),
        ),
    )  # fmt: skip


def headline(run: EvalRun) -> ScoreRecord | None:
    """The score that stands for a benchmark; a withheld one gives way to the next."""
    wanted = HEADLINES.get(run.benchmark, ())
    found = [s for key in wanted for s in run.scores if (s.subset, s.metric, s.source) == key]
    given = [s for s in found if s.score is not None]
    return (given or found or list(run.scores) or [None])[0]


def headlines(runs: Sequence[EvalRun]) -> Table | None:
    rows = [(r.benchmark, r.policy, *_cells(s)) for r in runs if (s := headline(r)) is not None]
    return table(("benchmark", "policy", *COLUMNS), rows)


def every(runs: Sequence[EvalRun]) -> Table | None:
    rows = [(r.benchmark, r.policy, *_cells(s)) for r in runs for s in r.scores]
    return table(("benchmark", "policy", *COLUMNS), rows)


COLUMNS = (
    "subset", "metric", "counted", "score", "95 % interval", "tasks", "trials", "floors", "not scored", "left out", "harness",
)  # fmt: skip


def _cells(s: ScoreRecord) -> tuple[str, ...]:
    lost = (
        (s.n_agent_failure, "agent failed (0)"),
        (s.n_infra_failure, "infrastructure"),
        (s.n_missing, "missing"),
    )
    floors = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in s.floors.items())
    return (
        s.subset, s.metric, s.source, "withheld" if s.score is None else fixed(s.score), _interval(s), str(s.n_tasks),
        trials(s.n_trials), floors or DASH, ", ".join(f"{n} {what}" for n, what in lost if n) or "0",
        few(s.skipped) or DASH, s.harness,
    )  # fmt: skip


def _interval(s: ScoreRecord) -> str:
    return DASH if s.low is None or s.high is None else f"[{s.low:.3f}, {s.high:.3f}]"


def comparisons(runs: Sequence[EvalRun], n: int) -> Table | None:
    """Every later policy against the first one, on the tasks that both have scored."""
    rows = []
    for name in dict.fromkeys(r.benchmark for r in runs):
        first, *others = [r for r in runs if r.benchmark == name]
        for run in others:
            e = paired(values_by_task(run, "reward"), values_by_task(first, "reward"), n)
            if e is not None and _comparable(first, run):
                rows.append(
                    (name, f"{run.policy} {MINUS} {first.policy}", *difference_cells(e), str(e.n_tasks))
                )
    note = "Strict rewards, paired by task. Runs of different harness versions, judges or simulated users are not compared."
    return table(
        ("benchmark", "comparison", "difference", "95 % interval", "reading", "tasks"), rows, note=note
    )


def _comparable(a: EvalRun, b: EvalRun) -> bool:
    """The same harness and data, the same other models."""
    return _identity(a) == _identity(b) != ()


def _identity(run: EvalRun) -> tuple:
    s = run.scores[0] if run.scores else None
    return (s.harness, s.data_hash, s.versions.get("user"), s.versions.get("judge")) if s else ()


def _figure(runs: Sequence[EvalRun], benchmark: str) -> str:
    bars = [
        plots.Bar(
            label=r.policy, value=s.score, low=s.low, high=s.high, color=plots.ACCENT, marks=dict(s.floors)
        )
        for r in runs
        if r.benchmark == benchmark and (s := headline(r)) is not None and s.score is not None
    ]
    return plots.intervals(f"bench-{benchmark}", bars, xlabel=benchmark) if bars else ""
