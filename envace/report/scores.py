"""Sections: success before and after training with the floors it stands on; arms beside their controls.

Invariant: a score is never shown without its number of tasks and trials, and one of a single trial says so;
arms are compared pooled over their seeds and paired by task, and every seed also stands by itself."""

from __future__ import annotations

from envace.report import plots
from envace.report.estimates import Estimate, estimate, floors_of, metric_of, trials_of
from envace.report.results import EvalRun
from envace.report.study import ARMS, START, Study, arm_of, benchmark_label
from envace.report.table import (
    DASH,
    MINUS,
    Section,
    Table,
    between,
    captioned,
    difference_cells,
    fixed,
    lost,
    table,
    trials,
)
from envace.types import ScoreRecord


def scores(study: Study) -> Section:
    temperature = study.params.eval.temperature
    return Section(
        id="scores",
        title="Success before and after",
        lead=f"Committed runs in the true world, sampled at temperature {temperature:g}; a failure of the "
        "agent counts 0. Intervals are 95 %, bootstrapped over tasks. Floors are agents without skill on the "
        "same tasks; the blind one never reads a response.",
        wide=True,
        plots=tuple(filter(None, (_figure(study, b) for b in study.params.eval.benchmarks))),
        tables=captioned(
            ("Before against after", gains(study)),
            ("Above the floors", floors(study)),
            ("All scores", every_score(study)),
        ),
    )


def _figure(study: Study, benchmark: str) -> str:
    """Start and the headline arm's seeds, with the floors as marks."""
    seeds = study.of_arm(study.main, benchmark)
    runs = [*study.of_arm(START, benchmark), *seeds]
    bars = [
        plots.Bar(
            label=run.policy,
            at=e,
            color=plots.SOFT if run.policy == START else plots.ACCENT,
            marks=floors_of(run),
        )
        for run in runs
        if (e := estimate(run, study.n)) is not None
    ]
    if len(seeds) > 1 and (e := study.score(seeds)):
        bars.append(plots.Bar(label=f"{study.main}, all seeds", at=e))
    metric = metric_of(runs[0]) if runs else "score"
    return plots.intervals(f"scores-{benchmark}", bars, xlabel=f"{benchmark_label(benchmark)}: {metric}")


def gains(study: Study) -> Table | None:
    """Every trained policy against start on each benchmark, and the headline's arm pooled."""
    rows = []
    for benchmark in study.params.eval.benchmarks:
        x = study.score(study.of_arm(START, benchmark))
        for arm in study.arms:
            seeds = study.of_arm(arm, benchmark)
            compared = [(r.policy, [r]) for r in seeds]
            compared += [(f"{arm}, all seeds", seeds)] * (arm == study.main and len(seeds) > 1)
            for name, runs in compared:
                y, g = study.score(runs), study.gain(runs, benchmark)
                if x and y and g:
                    cells = (fixed(x.value), fixed(y.value), *difference_cells(g), str(g.n_tasks))
                    rows.append(
                        (benchmark_label(benchmark), f"{name} {MINUS} start", *cells, trials(g.trials))
                    )
    columns = (
        "benchmark | comparison | before | after | difference | 95 % interval | reading | tasks | trials"
    )
    note = (
        "Over the same tasks; tasks, not trials, are resampled. Inside noise: the interval holds zero. Seeds "
        "share their tasks, so pooling them narrows what chance in play adds, not what other tasks would."
    )
    return table(columns, rows, note)


def floors(study: Study) -> Table | None:
    """How far start and the headline arm are above each floor."""
    rows = []
    for benchmark in study.params.eval.benchmarks:
        for name in (START, study.main):
            runs = study.of_arm(name, benchmark)
            if (e := study.score(runs)) is None:
                continue
            for floor, value in floors_of(runs[0]).items():
                cells = difference_cells(e.minus(value), ("above", "below"))
                rows.append((benchmark_label(benchmark), name, fixed(e.value), floor, fixed(value), *cells))
    columns = "benchmark | policy | success | floor | of the floor | above it | 95 % interval | reading"
    return table(columns, rows, "A floor is played once a task; its own spread is not in the interval.")


def every_score(study: Study) -> Table | None:
    """Every share an evaluation published; counts are in the cost table."""
    rows = []
    for run in study.results.evals:
        rows += [(run.policy, run.benchmark, *_cells(s, run)) for s in run.scores if s.scale == "0-1"]
        if not run.scores and (e := estimate(run, study.n)):
            cells = (fixed(e.value), between(e), str(e.n_tasks), trials(e.trials), DASH)
            rows.append((run.policy, run.benchmark, metric_of(run), *cells))
    return table(
        "policy | benchmark | metric | score | 95 % interval | tasks | trials | not scored",
        rows,
        "An interval without width means that every task scored alike, not that the score is certain.",
    )


def _cells(s: ScoreRecord, run: EvalRun) -> tuple[str, ...]:
    return (
        s.metric if s.source == "strict" else f"{s.metric} ({s.source})",
        "withheld" if s.score is None else fixed(s.score),
        DASH if s.score is None else between(Estimate(value=s.score, low=s.low, high=s.high)),
        str(s.n_tasks),
        trials(trials_of(run)),
        lost(s.n_agent_failure, s.n_infra_failure, s.n_missing),
    )


# --- controls -----------------------------------------------------------------------------------------------


def controls(study: Study) -> Section:
    """Every arm that was evaluated; with one arm alone there is nothing to compare it with."""
    evaluated = {arm_of(e.policy) for e in study.results.evals if e.finished} - {START}
    several = len(evaluated) > 1
    return Section(
        id="controls",
        title="Arms and controls",
        lead="Each arm starts from the same weights. What a control gains is not due to what it leaves out.",
        wide=True,
        plots=tuple(filter(None, [_arm_figure(study)] if several else [])),
        tables=captioned(("Arms, pooled over seeds", compared(study) if several else None)),
    )


def _arm_figure(study: Study) -> str:
    bars = [
        plots.Bar(label=arm, at=g, color=plots.ACCENT if arm == study.main else plots.SOFT)
        for arm in study.arms
        if (g := study.gain(study.of_arm(arm, study.first), study.first)) is not None
    ]
    xlabel = f"{benchmark_label(study.first)}: gain over start, pooled over seeds"
    return plots.intervals("controls", bars, xlabel=xlabel, zero=True) if len(bars) > 1 else ""


def compared(study: Study) -> Table | None:
    """An arm a line on each benchmark: its score, its gain, and what the headline arm has over it."""
    rows, main = [], study.main
    for benchmark in study.params.eval.benchmarks:
        for arm in study.arms:
            runs = study.of_arm(arm, benchmark)
            if (e := study.score(runs)) is None:
                continue
            own = difference_cells(study.gain(runs, benchmark))
            other = study.over(arm, benchmark) if arm != main else None
            over = difference_cells(other, (f"{main} ahead", f"{main} behind"))
            cells = (ARMS.get(arm, DASH), str(len(runs)), fixed(e.value), between(e), *own, *over)
            rows.append((benchmark_label(benchmark), arm, *cells))
    columns = (
        "benchmark | arm | what it is | seeds | success | 95 % interval | gain over start | 95 % interval | "
        f"reading | {main or 'headline'} {MINUS} this arm | 95 % interval | reading"
    )
    return table(columns, rows, "Intervals resample tasks; the spread between seeds is in the table above.")
