"""Rehearsing in private before the one committed run.

Flows in: `Results`, parameters. Flows out: one section.
Invariant: every point is compared with the one control on the same tasks and trials; a self-evaluation or
condensation that the policy could not write is counted as a fallback, never as its own.
"""

from __future__ import annotations

from envace.config import Params
from envace.report import plots
from envace.report.estimates import difference, estimate
from envace.report.names import control
from envace.report.results import EvalRun, Results
from envace.report.section import NOTHING, Section, captioned, short
from envace.report.table import DASH, Table, between, count, difference_cells, fixed, table, trials

COLORS = {"parallel": plots.REHEARSE, "sequential": plots.ACT}


def scaling(results: Results, params: Params) -> Section:
    found = points(results, params)
    lead = NOTHING
    if found:
        lead = (
            f"{params.tts.policy} rehearses a task in private, condenses what it imagined into a memory, "
            "then acts once for real. "
            "The control goes through the same code with no rehearsal and is measured once for all modes; "
            "differences are paired by task."
        )
    svgs = [_gains(results, params), *curves(results, params)]
    return Section(
        id="tts",
        title="Rehearsing before committing",
        lead=lead,
        wide=True,
        plots=tuple(s for s in svgs if s),
        tables=captioned(
            ("Test-time scaling", found),
            ("What the policy wrote about its rehearsals", forms(results)),
            ("Some memories, as the committed run reads them", memories(results)),
        ),
    )


def _private(run: EvalRun) -> float | None:
    """Tokens read and written in private, a committed run."""
    if not run.n:
        return 0.0
    runs, tokens = run.rehearsal.get("runs"), run.rehearsal.get("tokens")
    return tokens / runs if runs and tokens is not None else None


def points(results: Results, params: Params) -> Table | None:
    n, rows = params.report.bootstrap, []
    for run in results.tts:
        if (e := estimate(run, n)) is None:
            continue
        g = difference([control(results)], [run], n) if run.n else None
        what = f"{run.mode}, {run.n}" if run.n else "none (control)"
        rows.append(
            (
                what,
                fixed(e.value),
                between(e),
                *difference_cells(g),
                count(_private(run)),
                str(e.n_tasks),
                trials(e.trials),
            )
        )
    columns = (
        "private rehearsals",
        "success",
        "95 % interval",
        "against the control",
        "95 % interval",
        "reading",
        "tokens a run",
        "tasks",
        "trials",
    )
    return table(
        columns, rows, note="Tokens a run: read and written in private, on top of the committed run."
    )


def forms(results: Results) -> Table | None:
    """How often self-evaluations and condensations could be used."""
    rows = []
    for run in results.tts:
        r = run.rehearsal
        if run.n and r:
            good, all_of = r.get("self_evaluations"), r.get("attempts")
            told, runs = r.get("condensations"), r.get("runs")
            rows.append(
                (
                    run.name,
                    _of(good, all_of),
                    count(r.get("self_evaluation_fallbacks")),
                    _of(told, runs),
                    count(r.get("condensation_fallbacks")),
                    count(r.get("empty_memories")),
                )
            )
    columns = (
        "point",
        "usable self-evaluations",
        "replaced",
        "usable condensations",
        "replaced",
        "empty memories",
    )
    note = (
        "One that is malformed twice is replaced by a digest of names and outcomes made without the policy."
    )
    return table(columns, rows, note=note)


def _of(part: float | None, whole: float | None) -> str:
    if part is None or not whole:
        return DASH
    return f"{part:.0f} / {whole:.0f} ({100 * part / whole:.0f} %)"


def curves(results: Results, params: Params) -> list[str]:
    """Success over the number of rehearsals and over the tokens they took, a line a mode from the control
    on."""
    base, found = control(results), []
    for axis, label in (
        ("n", "private rehearsals a run"),
        ("tokens", "tokens read and written in private, a run"),
    ):
        lines = []
        for mode, color in COLORS.items():
            runs = sorted((r for r in results.tts if r.mode == mode and r.finished), key=lambda r: r.n)
            lines.append(_series(params, mode, color, axis, [r for r in (base, *runs) if r] if runs else []))
        title = "success of the committed run"
        found.append(plots.curves(f"tts-{axis}", title, lines, xlabel=label, wide=True))
    return found


def _series(params: Params, mode: str, color: str, axis: str, runs: list[EvalRun]) -> plots.Series:
    xs, ys, spans = [], [], []
    for run in runs:
        x, e = (float(run.n) if axis == "n" else _private(run)), estimate(run, params.report.bootstrap)
        if x is not None and e is not None:
            xs.append(x)
            ys.append(e.value)
            spans.append((e.low if e.low is not None else e.value, e.high if e.high is not None else e.value))
    return plots.Series(label=mode, color=color, xs=tuple(xs), ys=tuple(ys), spans=tuple(spans))


def _gains(results: Results, params: Params) -> str:
    bars = []
    for run in (r for r in results.tts if r.n):
        if (g := difference([control(results)], [run], params.report.bootstrap)) is not None:
            bars.append(
                plots.Bar(
                    label=f"{run.mode}, {run.n}",
                    value=g.value,
                    low=g.low,
                    high=g.high,
                    color=COLORS.get(run.mode, plots.REHEARSE),
                )
            )
    return plots.intervals("tts", bars, xlabel="difference to no rehearsal", zero=True)


def memories(results: Results) -> Table | None:
    told = [
        (r.name, task, short(text, 400))
        for r in results.tts
        for task, text in list(r.memories.items())[:2]
        if text
    ]
    return table(("rehearsals", "task", "memory"), told)
