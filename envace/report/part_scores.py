"""Success before and after training, with the floors it stands on, on every benchmark that was run.

Flows in: `Results`, parameters. Flows out: one section.
Invariant: a score is never shown without its number of tasks and trials, and one of a single trial says so.
"""

from __future__ import annotations

from envace.config import Params
from envace.report import plots
from envace.report.estimates import (
    Estimate,
    difference,
    estimate,
    floors_of,
    metric_of,
    pooled,
    trials_of,
)
from envace.report.names import START, arm_of, benchmark_label, evals_of, find_eval, trained_name
from envace.report.results import EvalRun, Results
from envace.report.section import NOTHING, Section, captioned
from envace.report.table import (
    DASH,
    MINUS,
    Table,
    between,
    difference_cells,
    fixed,
    signed,
    table,
    trials,
    verdict,
)
from envace.types import ScoreRecord

SHARES = ("0-1",)  # scales with a better and a worse


def scores(results: Results, params: Params) -> Section:
    svgs = [_figure(results, params, b) for b in params.eval.benchmarks]
    everything = every_score(results)
    lead = NOTHING
    if everything or any(svgs):
        lead = (
            f"Committed runs in the true world, sampled at temperature {params.eval.temperature:g}; a "
            "failure of the agent counts 0. "
            "Intervals are 95 %, bootstrapped over tasks. Floors are agents without skill on the same tasks; "
            "the blind one never reads a response."
        )
    return Section(
        id="scores",
        title="Success before and after",
        lead=lead,
        wide=True,
        plots=tuple(s for s in svgs if s),
        tables=captioned(
            ("Before against after", gains(results, params)),
            ("Above the floors", floors(results, params)),
            ("All scores", everything),
        ),
    )


def _figure(results: Results, params: Params, benchmark: str) -> str:
    """Start and the headline arm's seeds, with the floors as marks."""
    arm, n = arm_of(trained_name(params)), params.report.bootstrap
    runs = [find_eval(results, START, benchmark), *evals_of(results, arm, benchmark)]
    bars = []
    for run in (r for r in runs if r is not None):
        if (e := estimate(run, n)) is not None:
            color = plots.SOFT if run.policy == START else plots.ACCENT
            bars.append(_bar(run.policy, e, color, floors_of(run)))
    if len(runs) > 2 and (e := pooled(evals_of(results, arm, benchmark), n)):
        bars.append(_bar(f"{arm}, all seeds", e, plots.ACT, {}))
    metric = next((metric_of(r) for r in runs if r is not None), "score")
    return plots.intervals(f"scores-{benchmark}", bars, xlabel=f"{benchmark_label(benchmark)}: {metric}")


def _bar(label: str, e: Estimate, color: str, marks: dict[str, float]) -> plots.Bar:
    return plots.Bar(label=label, value=e.value, low=e.low, high=e.high, color=color, marks=marks)


def gains(results: Results, params: Params) -> Table | None:
    """The headline arm against start on each benchmark, seed by seed and pooled, paired by task."""
    arm, n, rows = arm_of(trained_name(params)), params.report.bootstrap, []
    for benchmark in params.eval.benchmarks:
        before, seeds = find_eval(results, START, benchmark), evals_of(results, arm, benchmark)
        for name, runs in [(r.policy, [r]) for r in seeds] + (
            [(f"{arm}, all seeds", seeds)] * (len(seeds) > 1)
        ):
            if (g := difference([before], runs, n)) is not None:
                x, y = pooled([before], n), pooled(runs, n)
                rows.append(
                    (
                        benchmark_label(benchmark),
                        f"{name} {MINUS} start",
                        fixed(x.value),
                        fixed(y.value),
                        *difference_cells(g),
                        str(g.n_tasks),
                        trials(g.trials),
                    )
                )
    columns = (
        "benchmark",
        "comparison",
        "before",
        "after",
        "difference",
        "95 % interval",
        "reading",
        "tasks",
        "trials",
    )
    note = (
        "Over the same tasks; tasks, not trials, are resampled. Inside noise: the interval holds zero. Seeds "
        "share their tasks, so pooling them narrows what chance in play adds, not what other tasks would."
    )
    return table(columns, rows, note=note)


def floors(results: Results, params: Params) -> Table | None:
    """How far start and the headline arm are above each floor."""
    arm, n, rows = arm_of(trained_name(params)), params.report.bootstrap, []
    for benchmark in params.eval.benchmarks:
        start = find_eval(results, START, benchmark)
        for name, runs in ((START, [start] if start else []), (arm, evals_of(results, arm, benchmark))):
            e = pooled(runs, n) if runs else None
            for floor, value in (floors_of(runs[0]) if e else {}).items():
                above = e.minus(value)
                rows.append(
                    (
                        benchmark_label(benchmark),
                        name,
                        fixed(e.value),
                        floor,
                        fixed(value),
                        signed(above.value),
                        between(above, "+.3f"),
                        verdict(above, ("above", "below")),
                    )
                )
    columns = (
        "benchmark",
        "policy",
        "success",
        "floor",
        "of the floor",
        "above it",
        "95 % interval",
        "reading",
    )
    return table(columns, rows, note="A floor is played once a task; its own spread is not in the interval.")


def every_score(results: Results) -> Table | None:
    """Every share an evaluation published; counts are in the cost table."""
    rows = []
    for run in results.evals:
        rows += [(run.policy, *_cells(s, run)) for s in run.scores if s.scale in SHARES]
        if not run.scores and run.samples and (e := estimate(run, 2000)):
            metric = metric_of(run)
            rows.append(
                (
                    run.policy,
                    run.benchmark,
                    metric,
                    fixed(e.value),
                    between(e),
                    str(e.n_tasks),
                    trials(e.trials),
                    DASH,
                )
            )
    columns = ("policy", "benchmark", "metric", "score", "95 % interval", "tasks", "trials", "not scored")
    note = "An interval without width means that every task scored alike, not that the score is certain."
    return table(columns, rows, note=note)


def _cells(s: ScoreRecord, run: EvalRun) -> tuple[str, ...]:
    lost = [
        f"{n} {what}"
        for n, what in (
            (s.n_agent_failure, "agent failed (0)"),
            (s.n_infra_failure, "infrastructure"),
            (s.n_missing, "missing"),
        )
        if n
    ]
    own = Estimate(value=s.score or 0.0, low=s.low, high=s.high)
    metric = s.metric if s.source == "strict" else f"{s.metric} ({s.source})"
    return (
        run.benchmark,
        metric,
        "withheld" if s.score is None else fixed(s.score),
        between(own) if s.score is not None else DASH,
        str(s.n_tasks),
        trials(trials_of(run)),
        ", ".join(lost) or "0",
    )
