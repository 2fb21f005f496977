"""The curve of training: what kept steps score, and the paper's two points beside it where the benchmark is
its own.

Flows in: `Results.dynamics`, parameters. Flows out: one section. Invariant: a point stands with its interval,
tasks and trials; all steps of a curve are of the same tasks; the paper's points are drawn as a line of their
own, labelled so, and stand in a table of their own."""

from __future__ import annotations

from collections.abc import Sequence

from envace.config import Params
from envace.report import paper, plots
from envace.report.bench_scores import HEADLINES, Key, find, headline, key_of
from envace.report.names import BENCHMARKS
from envace.report.policies import small_policy_note
from envace.report.results import EvalRun, Results
from envace.report.section import Section, captioned
from envace.report.table import Table, spread, table, trials
from envace.types import ScoreRecord

LEAD = (
    "Weights that training kept, evaluated one step after another on the same cut of the tasks "
    "(dynamics.limit, "
    "dynamics.trials): a curve to compare steps by, not final scores. Bars are 95 % intervals."
)
COLORS = plots.CYCLE[:-2]  # of our lines; grey is the paper's
NONE = "No kept steps were evaluated (dynamics.runs, dynamics.steps, dynamics.benchmarks)."


def dynamics(results: Results, params: Params) -> Section:
    """The section, with one plot a benchmark."""
    points = [r for r in results.dynamics if r.finished]
    names = list(dict.fromkeys(r.benchmark for r in points))
    note = small_policy_note(params) if set(names) - set(BENCHMARKS) else ""
    return Section(
        id="dynamics",
        title="Score along training",
        wide=True,
        lead=" ".join(filter(None, (LEAD, note))) if points else NONE,
        plots=tuple(filter(None, (_plot(points, name) for name in names))),
        tables=captioned(("Every point", every(points)), ("Paper", paper.printed_curves(names))),
    )


def _plot(points: Sequence[EvalRun], benchmark: str) -> str:
    """One score in one plot: a point that lacks it has no place there, but in the table."""
    own = [r for r in points if r.benchmark == benchmark]
    heads = [key_of(s) for r in own if (s := headline(r)) is not None and s.score is not None]
    if not heads:
        return ""
    key = max(heads, key=heads.count)
    lines = [
        _line([r for r in own if r.policy == run], run, key, COLORS[k % len(COLORS)])
        for k, run in enumerate(dict.fromkeys(r.policy for r in own))
    ]
    if key == HEADLINES.get(benchmark, ((),))[0] and benchmark in paper.CURVES:
        xs, ys = zip(*paper.CURVES[benchmark])
        label = f"paper, {paper.CURVE_OF}"
        lines.append(plots.Series(label=label, color=plots.SOFT, xs=xs, ys=tuple(y / 100 for y in ys)))
    return plots.curves(f"dynamics-{benchmark}", f"{benchmark}, {key[0]} {key[1]}", lines, wide=True)


def _line(points: Sequence[EvalRun], label: str, key: Key, color: str) -> plots.Series:
    """A training's points in the order of their steps. One without an interval has one of no width."""
    found = [
        (r.n, s) for r in sorted(points, key=lambda r: r.n) if (s := find(r, key)) and s.score is not None
    ]
    spans = tuple(
        (s.score if s.low is None else s.low, s.score if s.high is None else s.high) for _, s in found
    )
    xs, ys = tuple(step for step, _ in found), tuple(s.score for _, s in found)
    return plots.Series(label=label, color=color, xs=xs, ys=ys, spans=spans)


def every(points: Sequence[EvalRun]) -> Table | None:
    rows = [
        (
            r.benchmark,
            r.policy,
            str(r.n),
            f"{s.subset} {s.metric}",
            _score(s),
            str(s.n_tasks),
            trials(s.n_trials),
        )
        for r in sorted(points, key=lambda r: (r.benchmark, r.policy, r.n))
        if (s := headline(r)) is not None
    ]
    return table(("benchmark", "training", "step", "score", "value and interval", "tasks", "trials"), rows)


def _score(s: ScoreRecord) -> str:
    return "withheld" if s.score is None else spread(s.score, s.low, s.high)
