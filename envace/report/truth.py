"""Sections on what rehearsals are worth: the collusion gap, and fidelity beside predictors without a model.

Invariant: both sides of a gap were played on the same tasks with the same seeds and judged by the same items;
a policy and the predictors beside it answered the very same calls; a change is one only when its interval,
resampled over tasks, excludes zero."""

from __future__ import annotations

from envace.report import plots
from envace.report.estimates import Estimate, call_values, gap_values, mean, measured, number, paired, pool
from envace.report.results import FidelityRun, TrainRun
from envace.report.study import START, Study, arm_of
from envace.report.table import (
    MINUS,
    Section,
    Table,
    captioned,
    difference_cells,
    fixed,
    short,
    spread,
    table,
)
from envace.types import JSON

READING = ("only rehearsed", "only true")
"""Of a gap above and below zero."""
CURVES = {
    "train/rehearsed_success": "rehearsed success in training",
    "collapse/grounded_share": "recorded calls answered as recorded, share",
    "collapse/refusal_share": "refusals told, share",
}
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
CALLS_SHOWN = 6


def gap(study: Study) -> Section:
    return Section(
        id="gap",
        title="The collusion gap",
        lead="The same tasks, seeds and policy, once with the policy's own responses and once with true: "
        "success means that every required checklist item holds. A gap that grows in training, or rehearsed "
        "states of fewer bits than the true answers to the same calls, means that the two roles please each "
        "other, not the world.",
        plots=tuple(filter(None, [_gap_figure(study), *_over_training(study)])),
        tables=captioned(
            ("Rehearsed against true success", gaps(study)),
            ("What rehearsals tell", states(study)),
            ("Gap of an arm, pooled over seeds", by_arm(study)),
        ),
    )


def gaps(study: Study) -> Table | None:
    rows = []
    for f in study.results.fidelity:
        if (g := f.scores.get("gap/collusion")) is not None:
            sides = (spread(measured(f.scores.get(f"gap/{s}"))) for s in ("rehearsed", "true", "success"))
            counts = f"{g.calls} / {g.tasks}"
            rows.append((f.policy, *sides, *difference_cells(measured(g), READING), counts))
    columns = (
        "policy | rehearsed success | true success, same items | true success, with end state | "
        f"gap: rehearsed {MINUS} true, same items | 95 % interval | reading | episodes a side / tasks"
    )
    note = (
        "Paired by task. Rehearsed and true success are judged by the same items; only the true world has an "
        "end state to check."
    )
    return table(columns, rows, note)


def states(study: Study) -> Table | None:
    """Entropy and refusals of the rehearsed side beside the truth of the same calls."""
    keys = ("rehearsed_entropy", "true_entropy", "rehearsed_refusals", "true_refusals", "grounded")
    rows = []
    for f in study.results.fidelity:
        found = [f.scores.get(f"gap/{k}") for k in keys]
        if any(found):
            rows.append((f.policy, *(fixed(s.value if s else None) for s in found)))
    columns = (
        "policy | bits a field, rehearsed | bits a field, true | refusals, rehearsed | refusals, true | "
        "recorded calls answered as recorded"
    )
    note = (
        "Bits: entropy of a field's values over look-ups, averaged over fields by how often each was told; 0 "
        "when one state is told always. True: what the world says to the same calls."
    )
    return table(columns, rows, note)


def by_arm(study: Study) -> Table | None:
    """Pooled gaps, for arms of several seeds."""
    arms: dict[str, list[FidelityRun]] = {}
    for f in study.results.fidelity:
        if f.plays:
            arms.setdefault(arm_of(f.policy), []).append(f)
    rows = []
    for arm, runs in arms.items():
        values = pool([gap_values(f) for f in runs])
        if len(runs) > 1 and values:
            e = mean(values, study.n)
            rows.append((arm, str(len(runs)), *difference_cells(e, READING), str(e.n_tasks)))
    return table("arm | seeds | gap | 95 % interval | reading | tasks", rows)


def _gap_figure(study: Study) -> str:
    bars = [
        plots.Bar(label=f.policy, at=g, color=plots.SOFT if f.policy == START else plots.REHEARSE)
        for f in study.results.fidelity
        if (g := measured(f.scores.get("gap/collusion"))) is not None
    ]
    return plots.intervals("gap", bars, xlabel=f"rehearsed {MINUS} true success", zero=True)


def _over_training(study: Study) -> list[str]:
    """Curves of the first seed of each arm that rehearses, and for the headline its true success at both
    ends."""
    firsts: dict[str, TrainRun] = {}
    for run in study.results.train:
        if run.steps and study.rehearses(run.name):
            firsts.setdefault(arm_of(run.name), run)
    runs, svgs = list(firsts.values()), []
    for key, title in CURVES.items():
        lines = [line(r, key, r.name, plots.CYCLE[i % len(plots.CYCLE)]) for i, r in enumerate(runs)]
        if key == "train/rehearsed_success" and any(s.points for s in lines):
            lines.append(_true_ends(study))
        svgs.append(plots.curves(f"gap-{key.replace('/', '-')}", title, lines))
    if runs:
        run = next((r for r in runs if r.name == study.name), runs[0])
        told = line(run, "collapse/rehearsed_state_entropy", "rehearsed", plots.REHEARSE)
        true = line(run, "collapse/true_state_entropy", "true", plots.ACCENT)
        svgs.append(plots.curves("gap-entropy", f"bits a field, {run.name}", [told, true]))
    return svgs


def _true_ends(study: Study) -> plots.Series:
    """True success, same items, of start and of the headline policy."""
    steps = [r.steps[-1]["step"] for r in study.results.train if r.name == study.name and r.steps]
    ends = ((0, START), (max([0, *steps]), study.name))
    points = [(step, e.value) for step, policy in ends if (e := study.measured(policy, "gap/true"))]
    return plots.Series(label=f"true, {study.name}", color=plots.INK, points=points)


def line(run: TrainRun, key: str, label: str, color: str) -> plots.Series:
    """A metric over the optimizer steps that have it."""
    points = [(s["step"], v) for s in run.steps if (v := number(s.get(key))) is not None]
    return plots.Series(label=label, color=color, points=points)


# --- fidelity -----------------------------------------------------------------------------------------------


def fidelity(study: Study) -> Section:
    shown = [f for p in dict.fromkeys((START, study.name)) if (f := study.fidelity(p))]
    modes = list(dict.fromkeys((study.mode, "none")))
    each = [(mode, part) for mode in modes for part in ("", "recorded")]
    return Section(
        id="fidelity",
        title="Fidelity of rehearsals",
        lead="REHEARSE answers calls whose true response is known: those of the reference dialogues, and "
        "each once more with a word spoilt. A recorded call is one whose answer stands in a record it may be "
        "shown. Predictors answer the same calls without a model: copy takes the nearest record shown, "
        "constant and majority what other tasks' calls of the tool got.",
        wide=True,
        plots=tuple(filter(None, [_fidelity_figure(shown, modes[0])])),
        tables=captioned(
            ("Change in training", change(study, modes)),
            *(
                (f"{'Recorded' if p else 'All'} calls, records shown: {m}", beside_predictors(shown, m, p))
                for m, p in each
            ),
            ("Every policy, exact", every_policy(study, each)),
            *[(f"Some rehearsed calls, {f.policy}", calls(f)) for f in shown[-1:]],
        ),
    )


def _key(*parts: str) -> str:
    return "/".join(filter(None, parts))


def beside_predictors(shown: list[FidelityRun], mode: str, part: str) -> Table | None:
    """Policies and predictors side by side, a line a metric."""
    rows = []
    for metric, label in METRICS.items():
        own = [f.scores.get(_key(mode, part, metric)) for f in shown]
        if given := [s for s in own if s]:
            others = [shown[-1].scores.get(_key(mode, part, by, metric)) for by in PREDICTORS]
            cells = (spread(measured(s)) for s in (*own, *others))
            rows.append((label, *cells, f"{given[0].calls} / {given[0].tasks}"))
    columns = " | ".join(("metric", *(f.policy for f in shown), *PREDICTORS.values(), "calls / tasks"))
    return table(columns, rows, "Mean over tasks of the mean over a task's calls, with its 95 % interval.")


def change(study: Study, modes: list[str]) -> Table | None:
    """The headline arm minus start on the same calls, pooled over its seeds."""
    start, runs = study.fidelity(START), _of_main(study)
    if start is None or not runs:
        return None
    rows = []
    for mode in modes:
        for recorded in (True, False) if mode != "none" else (False,):
            for metric in COMPARED:
                if (e := changed(study, mode, metric, recorded=recorded)) is not None:
                    what = f"{METRICS[metric]}, {'recorded' if recorded else 'all'} calls"
                    rows.append((mode, what, *difference_cells(e), str(e.n_tasks)))
    columns = f"records shown | {study.main} {MINUS} start | difference | 95 % interval | reading | tasks"
    return table(columns, rows, f"Pooled over {len(runs)} policies of the arm." if len(runs) > 1 else "")


def _of_main(study: Study) -> list[FidelityRun]:
    return [f for f in study.results.fidelity if f.scores and arm_of(f.policy) == study.main]


def changed(study: Study, mode: str, metric: str, *, recorded: bool) -> Estimate | None:
    """One fidelity metric of the headline arm minus start's."""
    start = study.fidelity(START)
    sides = [_of_main(study), [start] if start else []]
    after, before = (pool([call_values(f, mode, metric, recorded=recorded) for f in runs]) for runs in sides)
    return paired(after, before, study.n)


def every_policy(study: Study, each: list[tuple[str, str]]) -> Table | None:
    """Exact agreement of each policy; only worth a table when there are more than two."""
    found = [f for f in study.results.fidelity if f.scores]
    columns = " | ".join(("policy", *(_key(mode, part).replace("/", ", ") for mode, part in each)))
    rows = [
        (f.policy, *(spread(measured(f.scores.get(_key(mode, part, "exact")))) for mode, part in each))
        for f in found
    ]
    return table(columns, rows) if len(found) > 2 else None


def _fidelity_figure(shown: list[FidelityRun], mode: str) -> str:
    marks = [(f.policy, plots.SOFT if f.policy == START else plots.REHEARSE, f, "") for f in shown]
    marks += [(PREDICTORS[by], plots.WARN, shown[-1], by) for by in ("copy", "constant") if shown]
    found = [
        (label, c, measured(f.scores.get(_key(mode, "recorded", by, "exact")))) for label, c, f, by in marks
    ]
    bars = [plots.Bar(label=label, at=e, color=color) for label, color, e in found if e]
    return plots.intervals("fidelity", bars, xlabel="exact on recorded calls")


def calls(run: FidelityRun) -> Table | None:
    """A few measured calls of the first mode, spread over the file."""
    own = [c for c in run.calls if c.get("by") == "policy" and "rehearsed" in c]
    own = [c for c in own if c.get("few_shot") == own[0].get("few_shot")]
    rows = []
    for c in own[:: max(1, len(own) // CALLS_SHOWN)][:CALLS_SHOWN]:
        told = short(c.get("rehearsed") or c.get("text"))
        rows.append((_call(c.get("call")), short(c.get("truth")), told, "yes" if c.get("exact") else "no"))
    return table("call | true response | rehearsed response | equal", rows)


def _call(call: JSON) -> str:
    if not isinstance(call, dict) or not isinstance(arguments := call.get("arguments"), dict):
        return short(call)
    return short(f"{call.get('name')}({', '.join(f'{k}={v}' for k, v in arguments.items())})")
