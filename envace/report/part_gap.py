"""The collusion gap: success that only the rehearsed world grants, for each policy and over training.

Flows in: `Results`, parameters. Flows out: one section.
Invariant: both sides of a gap were played on the same tasks with the same seeds and judged by the same items;
what training did not log is left out.
"""

from __future__ import annotations

from envace.config import Params
from envace.report import plots
from envace.report.estimates import Estimate, gap_values, mean, pool
from envace.report.names import START, arm_of, find_fidelity, rehearses, trained_name
from envace.report.reader import number
from envace.report.results import FidelityRun, Results, TrainRun
from envace.report.section import NOTHING, Section, captioned
from envace.report.table import DASH, MINUS, Table, between, fixed, signed, spread, table, verdict

READING = ("only rehearsed", "only true")  # of a gap above and below zero
CURVES = (
    ("train/rehearsed_success", "rehearsed success in training"),
    ("collapse/grounded_share", "recorded calls answered as recorded, share"),
    ("collapse/refusal_share", "refusals told, share"),
)
ENTROPY = (("collapse/rehearsed_state_entropy", "rehearsed"), ("collapse/true_state_entropy", "true"))


def gap(results: Results, params: Params) -> Section:
    found = policies(results)
    svgs = [_bars(results), *over_training(results, params)]
    lead = NOTHING
    if found or any(svgs):
        lead = (
            "The same tasks, seeds and policy, once with the policy's own responses and once with true ones; "
            "success on both sides "
            "means that every required checklist item holds. A gap that grows in training, or rehearsed "
            "states of fewer bits than "
            "the true answers to the same calls, means that the two roles please each other, not the world."
        )
    return Section(
        id="gap",
        title="The collusion gap",
        lead=lead,
        plots=tuple(s for s in svgs if s),
        tables=captioned(
            ("Rehearsed against true success", found),
            ("What rehearsals tell", states(results)),
            ("Gap of an arm, pooled over seeds", by_arm(results, params)),
        ),
    )


def policies(results: Results) -> Table | None:
    rows = []
    for f in results.fidelity:
        if (g := f.scores.get("gap/collusion")) is not None:
            sides = [f.scores.get(f"gap/{side}") for side in ("rehearsed", "true", "success")]
            cells = [spread(s.value, s.low, s.high) if s else DASH for s in sides]
            e = Estimate(value=g.value, low=g.low, high=g.high)
            rows.append(
                (
                    f.policy,
                    *cells,
                    signed(g.value),
                    between(e, "+.3f"),
                    verdict(e, READING),
                    f"{g.calls} / {g.tasks}",
                )
            )
    columns = (
        "policy",
        "rehearsed success",
        "true success, same items",
        "true success, with end state",
        f"gap: rehearsed {MINUS} true, same items",
        "95 % interval",
        "reading",
        "episodes a side / tasks",
    )
    return table(
        columns,
        rows,
        note=(
            "Paired by task. Rehearsed and true success are judged by the same items; only the true world "
            "has an end state to check."
        ),
    )


def states(results: Results) -> Table | None:
    """Entropy and refusals of the rehearsed side beside the truth of the same calls."""
    keys = ("rehearsed_entropy", "true_entropy", "rehearsed_refusals", "true_refusals", "grounded")
    rows = []
    for f in results.fidelity:
        found = [f.scores.get(f"gap/{k}") for k in keys]
        if any(found):
            rows.append((f.policy, *(fixed(s.value if s else None) for s in found)))
    columns = (
        "policy",
        "bits a field, rehearsed",
        "bits a field, true",
        "refusals, rehearsed",
        "refusals, true",
        "recorded calls answered as recorded",
    )
    note = (
        "Bits: entropy of a field's values over look-ups, averaged over fields by how often each was told; 0 "
        "when one state is told always. True: what the world says to the same calls."
    )
    return table(columns, rows, note=note)


def by_arm(results: Results, params: Params) -> Table | None:
    """Pooled gaps, for arms of several seeds."""
    groups: dict[str, list[FidelityRun]] = {}
    for f in results.fidelity:
        if f.plays:
            groups.setdefault(arm_of(f.policy), []).append(f)
    rows = []
    for arm, runs in groups.items():
        values = pool([gap_values(f) for f in runs])
        if len(runs) > 1 and values:
            e = mean(values, params.report.bootstrap)
            rows.append(
                (
                    arm,
                    str(len(runs)),
                    signed(e.value),
                    between(e, "+.3f"),
                    verdict(e, READING),
                    str(e.n_tasks),
                )
            )
    return table(("arm", "seeds", "gap", "95 % interval", "reading", "tasks"), rows)


def _bars(results: Results) -> str:
    bars = []
    for f in results.fidelity:
        if (g := f.scores.get("gap/collusion")) is not None:
            color = plots.SOFT if f.policy == START else plots.REHEARSE
            bars.append(plots.Bar(label=f.policy, value=g.value, low=g.low, high=g.high, color=color))
    return plots.intervals("gap", bars, xlabel=f"rehearsed {MINUS} true success", zero=True)


def over_training(results: Results, params: Params) -> list[str]:
    """Curves of the first seed of each arm that rehearses, and for the headline its true success at both
    ends."""
    firsts: dict[str, TrainRun] = {}
    for run in results.train:
        if run.steps and rehearses(params, run.name):
            firsts.setdefault(arm_of(run.name), run)
    runs = list(firsts.values())
    svgs = []
    for key, title in CURVES:
        lines = [line(r, key, r.name, plots.CYCLE[i % len(plots.CYCLE)]) for i, r in enumerate(runs)]
        if key == "train/rehearsed_success" and any(s.xs for s in lines):
            lines.append(_true_ends(results, params))
        svgs.append(plots.curves(f"gap-{key.replace('/', '-')}", title, lines))
    headline = next((r for r in runs if r.name == trained_name(params)), runs[0] if runs else None)
    if headline is not None:
        colors = (plots.REHEARSE, plots.ACCENT)
        lines = [line(headline, key, label, c) for (key, label), c in zip(ENTROPY, colors)]
        svgs.append(plots.curves("gap-entropy", f"bits a field, {headline.name}", lines))
    return svgs


def _true_ends(results: Results, params: Params) -> plots.Series:
    """True success, same items, of start and of the headline policy."""
    name = trained_name(params)
    last = max([0, *(r.steps[-1]["step"] for r in results.train if r.name == name and r.steps)])
    points = []
    for step, policy in ((0, START), (last, name)):
        f = find_fidelity(results, policy)
        if f is not None and (s := f.scores.get("gap/true")):
            points.append((step, s.value))
    return plots.Series(
        label=f"true, {name}", color=plots.INK, xs=tuple(p[0] for p in points), ys=tuple(p[1] for p in points)
    )


def line(run: TrainRun, key: str, label: str, color: str) -> plots.Series:
    """A metric over the optimizer steps that have it."""
    points = [(s["step"], v) for s in run.steps if (v := number(s.get(key))) is not None]
    return plots.Series(
        label=label, color=color, xs=tuple(p[0] for p in points), ys=tuple(p[1] for p in points)
    )
