"""How true rehearsed responses are, beside predictors that need no model.

Flows in: `Results`, parameters. Flows out: one section. Invariant: a policy and the predictors beside it
answered the very same calls; a change is a change only when its interval, resampled over tasks, excludes
zero."""

from __future__ import annotations

from envace.bench.fidelity.scores import Score
from envace.config import Params
from envace.report import plots
from envace.report.estimates import call_values, paired, pool
from envace.report.names import START, arm_of, find_fidelity, trained_name
from envace.report.results import FidelityRun, Results
from envace.report.section import NOTHING, Section, captioned, short
from envace.report.table import DASH, MINUS, Table, difference_cells, spread, table

METRICS = {
    "exact": "equal to the true response",
    "grounded": "leaves that could be copied, copied",
    "shape": "same keys, F1",
    "verdict": "both refuse or both answer",
    "false_success": "answers what the world refuses",
    "false_refusal": "refuses what the world answers",
    "valid": "keeps the response contract",
    "grounded_share": "leaves that could be copied, of all",
}
PREDICTORS = {"copy": "copy a record", "constant": "constant", "majority": "majority verdict"}
COMPARED = ("exact", "grounded", "shape", "verdict")


def truth(results: Results, params: Params) -> Section:
    shown = [f for p in dict.fromkeys((START, trained_name(params))) if (f := find_fidelity(results, p))]
    modes = list(dict.fromkeys((params.resolved_method().few_shot, "none")))
    tables = [
        (_caption(mode, part), beside_predictors(shown, mode, part))
        for mode in modes
        for part in ("", "recorded")
    ]
    lead = NOTHING
    if shown:
        lead = (
            "REHEARSE answers calls whose true response is known: those of the reference dialogues, and each "
            "once more with a word spoilt. "
            "A recorded call is one whose answer stands in a record it may be shown. Predictors answer the "
            "same calls without a model: "
            "copy takes the nearest record shown, constant and majority what other tasks' calls of the tool "
            "got."
        )
    figure = _figure(shown, modes[0])
    return Section(
        id="fidelity",
        title="Fidelity of rehearsals",
        lead=lead,
        wide=True,
        plots=(figure,) if figure else (),
        tables=captioned(
            ("Change in training", change(results, params, modes)),
            *tables,
            ("Every policy, exact", every_policy(results, modes)),
            *[(f"Some rehearsed calls, {f.policy}", calls(f)) for f in shown[-1:]],
        ),
    )


def _caption(mode: str, part: str) -> str:
    return f"{'Recorded' if part else 'All'} calls, records shown: {mode}"


def _name(mode: str, part: str, by: str, metric: str) -> str:
    return "/".join(p for p in (mode, part, by, metric) if p)


def beside_predictors(shown: list[FidelityRun], mode: str, part: str) -> Table | None:
    """Policies and predictors side by side, a line a metric."""
    if not shown:
        return None
    last, rows = shown[-1].scores, []
    for metric, label in METRICS.items():
        own = [f.scores.get(_name(mode, part, "", metric)) for f in shown]
        if any(own):
            n = next(s for s in own if s)
            others = [last.get(_name(mode, part, by, metric)) for by in PREDICTORS]
            rows.append((label, *map(_cell, own), *map(_cell, others), f"{n.calls} / {n.tasks}"))
    columns = ("metric", *(f.policy for f in shown), *PREDICTORS.values(), "calls / tasks")
    return table(
        columns, rows, note="Mean over tasks of the mean over a task's calls, with its 95 % interval."
    )


def _cell(s: Score | None) -> str:
    return spread(s.value, s.low, s.high) if s else DASH


def change(results: Results, params: Params, modes: list[str]) -> Table | None:
    """The headline arm minus start on the same calls, pooled over its seeds."""
    start, arm = find_fidelity(results, START), arm_of(trained_name(params))
    runs = [f for f in results.fidelity if f.scores and arm_of(f.policy) == arm]
    if start is None or not runs:
        return None
    rows = []
    for mode in modes:
        for recorded in (True, False) if mode != "none" else (False,):
            for metric in COMPARED:
                sides = [
                    pool([call_values(f, mode, metric, recorded=recorded) for f in group])
                    for group in (runs, [start])
                ]
                if (e := paired(*sides, params.report.bootstrap)) is not None:
                    what = f"{METRICS[metric]}, {'recorded' if recorded else 'all'} calls"
                    rows.append((mode, what, *difference_cells(e), str(e.n_tasks)))
    columns = ("records shown", f"{arm} {MINUS} start", "difference", "95 % interval", "reading", "tasks")
    return table(columns, rows, note=f"Pooled over {len(runs)} policies of the arm." if len(runs) > 1 else "")


def every_policy(results: Results, modes: list[str]) -> Table | None:
    """Exact agreement of each policy; only worth a table when there are more than two."""
    found = [f for f in results.fidelity if f.scores]
    if len(found) < 3:
        return None
    names = [_name(mode, part, "", "exact") for mode in modes for part in ("", "recorded")]
    rows = [(f.policy, *(_cell(f.scores.get(n)) for n in names)) for f in found]
    return table(("policy", *(n.removesuffix("/exact").replace("/", ", ") for n in names)), rows)


def _figure(shown: list[FidelityRun], mode: str) -> str:
    bars = []
    for f in shown:
        if s := f.scores.get(f"{mode}/recorded/exact"):
            color = plots.SOFT if f.policy == START else plots.REHEARSE
            bars.append(plots.Bar(label=f.policy, value=s.value, low=s.low, high=s.high, color=color))
    for by in ("copy", "constant") if bars else ():
        if s := shown[-1].scores.get(f"{mode}/recorded/{by}/exact"):
            bars.append(
                plots.Bar(label=PREDICTORS[by], value=s.value, low=s.low, high=s.high, color=plots.WARN)
            )
    return plots.intervals("fidelity", bars, xlabel="exact on recorded calls")


CALLS_SHOWN = 6


def calls(run: FidelityRun) -> Table | None:
    """A few measured calls of the first mode, spread over the file."""
    own = [c for c in run.calls if c.get("by") == "policy" and "rehearsed" in c]
    own = [c for c in own if c.get("few_shot") == own[0].get("few_shot")]
    picked = own[:: max(1, len(own) // CALLS_SHOWN)][:CALLS_SHOWN]
    rows = [
        (
            _call(c.get("call")),
            short(c.get("truth")),
            short(c.get("rehearsed") or c.get("text")),
            "yes" if c.get("exact") else "no",
        )
        for c in picked
    ]
    return table(("call", "true response", "rehearsed response", "equal"), rows)


def _call(call: object) -> str:
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
        return short(call)
    return short(f"{call.get('name')}({', '.join(f'{k}={v}' for k, v in call['arguments'].items())})")
