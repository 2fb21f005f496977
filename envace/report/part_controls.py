"""The headline arm beside its controls: other rewards, another world, other training.

Flows in: `Results`, parameters. Flows out: one section.
Invariant: arms are compared pooled over their seeds and paired by task; every seed also stands by itself.
"""

from __future__ import annotations

from envace.config import Params
from envace.report import plots
from envace.report.estimates import difference, pooled
from envace.report.names import ARMS, START, arm_of, arms, benchmark_label, evals_of, find_eval, trained_name
from envace.report.results import Results
from envace.report.section import NOTHING, Section, captioned
from envace.report.table import DASH, MINUS, Table, between, difference_cells, fixed, table, trials


def controls(results: Results, params: Params) -> Section:
    """Every arm that was evaluated; with one arm alone there is nothing to compare it with."""
    several = len({a for a in arms(params) for b in params.eval.benchmarks if evals_of(results, a, b)}) > 1
    found, each = compared(results, params) if several else None, seeds(results, params)
    lead = "Each arm starts from the same weights. What a control gains is not due to what it leaves out."
    if not several:
        lead = (
            "One arm was trained; without a control its gain is not known to come from the reward."
            if each
            else NOTHING
        )
    return Section(
        id="controls",
        title="Arms and controls",
        lead=lead,
        wide=True,
        plots=tuple(s for s in (_figure(results, params),) if s),
        tables=captioned(("Arms, pooled over seeds", found), ("Every seed", each)),
    )


def _figure(results: Results, params: Params) -> str:
    benchmark, n = params.eval.first, params.report.bootstrap
    start, main = find_eval(results, START, benchmark), arm_of(trained_name(params))
    bars = []
    for arm in arms(params):
        if (g := difference([start], evals_of(results, arm, benchmark), n)) is not None:
            color = plots.ACCENT if arm == main else plots.SOFT
            bars.append(plots.Bar(label=arm, value=g.value, low=g.low, high=g.high, color=color))
    xlabel = f"{benchmark_label(benchmark)}: gain over start, pooled over seeds"
    return plots.intervals("controls", bars, xlabel=xlabel, zero=True) if len(bars) > 1 else ""


def compared(results: Results, params: Params) -> Table | None:
    """An arm a line on each benchmark: its score, its gain, and what the headline arm has over it."""
    n, main, rows = params.report.bootstrap, arm_of(trained_name(params)), []
    for benchmark in params.eval.benchmarks:
        start = find_eval(results, START, benchmark)
        for arm in arms(params):
            runs = evals_of(results, arm, benchmark)
            if (e := pooled(runs, n)) is None:
                continue
            own = difference([start], runs, n)
            over = difference(runs, evals_of(results, main, benchmark), n) if arm != main else None
            rows.append(
                (
                    benchmark_label(benchmark),
                    arm,
                    ARMS.get(arm, DASH),
                    str(len(runs)),
                    fixed(e.value),
                    between(e),
                    *difference_cells(own),
                    *difference_cells(over, (f"{main} ahead", f"{main} behind")),
                )
            )
    columns = (
        "benchmark",
        "arm",
        "what it is",
        "seeds",
        "success",
        "95 % interval",
        "gain over start",
        "95 % interval",
        "reading",
        f"{main or 'headline'} {MINUS} this arm",
        "95 % interval",
        "reading",
    )
    return table(
        columns, rows, note="Intervals resample tasks; the spread between seeds is in the next table."
    )


def seeds(results: Results, params: Params) -> Table | None:
    """Every trained policy against start."""
    n, rows = params.report.bootstrap, []
    for benchmark in params.eval.benchmarks:
        start = find_eval(results, START, benchmark)
        for run in (r for arm in arms(params) for r in evals_of(results, arm, benchmark)):
            if (e := pooled([run], n)) is None:
                continue
            g = difference([start], [run], n)
            rows.append(
                (
                    benchmark_label(benchmark),
                    run.policy,
                    fixed(e.value),
                    between(e),
                    *difference_cells(g),
                    str(e.n_tasks),
                    trials(e.trials),
                )
            )
    columns = (
        "benchmark",
        "policy",
        "success",
        "95 % interval",
        "gain over start",
        "95 % interval",
        "reading",
        "tasks",
        "trials",
    )
    return table(columns, rows)
