"""Upstream benchmarks: the paper's tables with our rows in them, policies held against each other, every
score.

Flows in: `Results.bench`. Flows out: one section. Invariant: a score is shown with its tasks, trials, floors,
what was left out and who judged it; a single trial says so; the paper's numbers are labelled as such, in the
same scale; what is not comparable is not compared."""

from __future__ import annotations

from collections.abc import Sequence

from envace.bench.summary import few
from envace.config import Params
from envace.report import bench_tables, plots
from envace.report.bench_pairs import comparisons
from envace.report.bench_scores import HEADLINES, Key, find, groups, headline, key_of
from envace.report.policies import small_policy_note
from envace.report.results import EvalRun, Results
from envace.report.section import Section, captioned
from envace.report.table import DASH, Table, fixed, table, trials
from envace.types import ScoreRecord

LEAD = (
    "Each in the harness its authors publish, run as a process of its own. Strict: a failure of the agent "
    "counts 0. "
    "Upstream: as the harness counts, which may leave failures out. Intervals are 95 %, bootstrapped over "
    "tasks."
)
NONE = (
    "No upstream benchmark was run (bench.policies, bench.benchmarks), so the paper's numbers are not shown "
    "beside ours."
)
TITLES = {"bfcl": "BFCL-v4 by group", "tau2": "τ²-Bench by domain", "vita": "VitaBench by domain"}


def bench(results: Results, params: Params) -> Section:
    """The section, with the figure, the paper's tables and the details of the benchmarks that ran."""
    run, n = [r for r in results.bench if r.finished], params.report.bootstrap
    return Section(
        id="bench",
        title="Upstream benchmarks",
        wide=True,
        lead=_lead(run, params),
        plots=tuple(filter(None, (_figure(run, b) for b in params.bench.benchmarks))),
        tables=captioned(
            ("Main results", bench_tables.main(run, n)),
            *((title, bench_tables.parts(run, b)) for b, title in TITLES.items()),
            ("FinMCP-Bench", bench_tables.finmcp(run)),
            ("On the same tasks", comparisons(run, n)),
            ("Every score", every(run)),
        ),
    )


def _lead(run: Sequence[EvalRun], params: Params) -> str:
    note = small_policy_note(params, tuple(r.policy for r in run))
    return " ".join(filter(None, (LEAD, note))) if run else NONE


def every(runs: Sequence[EvalRun]) -> Table | None:
    rows = [(r.benchmark, r.policy, *_cells(s)) for r in runs for s in r.scores]
    return table(("benchmark", "policy", *COLUMNS), rows)


COLUMNS = (
    "subset",
    "metric",
    "counted",
    "score",
    "95 % interval",
    "tasks",
    "trials",
    "floors",
    "not scored",
    "left out",
    "harness",
)


def _cells(s: ScoreRecord) -> tuple[str, ...]:
    lost = (
        (s.n_agent_failure, "agent failed (0)"),
        (s.n_infra_failure, "infrastructure"),
        (s.n_missing, "missing"),
    )
    floors = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in s.floors.items())
    return (
        s.subset,
        s.metric,
        s.source,
        "withheld" if s.score is None else fixed(s.score),
        _interval(s),
        str(s.n_tasks),
        trials(s.n_trials),
        floors or DASH,
        ", ".join(f"{n} {what}" for n, what in lost if n) or "0",
        few(s.skipped) or DASH,
        s.harness,
    )


def _interval(s: ScoreRecord) -> str:
    return DASH if s.low is None or s.high is None else f"[{s.low:.3f}, {s.high:.3f}]"


def _figure(runs: Sequence[EvalRun], benchmark: str) -> str:
    """One score of one setup: bars of different scores, harnesses or judges never share an axis."""
    own = max(groups([r for r in runs if r.benchmark == benchmark]), key=len, default=[])
    if (key := _common(own)) is None:
        return ""
    bars = [
        plots.Bar(
            label=r.policy, value=s.score, low=s.low, high=s.high, color=plots.ACCENT, marks=dict(s.floors)
        )
        for r in own
        if (s := find(r, key)) is not None and s.score is not None
    ]
    return (
        plots.intervals(f"bench-{benchmark}", bars, xlabel=f"{benchmark} {key[0]} {key[1]}") if bars else ""
    )


def _common(runs: Sequence[EvalRun]) -> Key | None:
    """The first headline that all have; else the one most of them have."""
    heads = [key_of(s) for r in runs if (s := headline(r)) is not None and s.score is not None]
    for key in HEADLINES.get(runs[0].benchmark, ()) if runs else ():
        if all((s := find(r, key)) is not None and s.score is not None for r in runs):
            return key
    return max(heads, key=heads.count, default=None)
