"""The top of the page: one sentence with the verdict, the few numbers to look at first, every comparison that
was made, and what the run does not show.

Invariant: a difference is called one only when its interval excludes zero; a number that was not measured is
not there."""

from __future__ import annotations

from dataclasses import dataclass

from envace.report import paper
from envace.report.estimates import Estimate, floors_of, metric_of
from envace.report.results import EvalRun
from envace.report.study import START, Study, arm_of, benchmark_label
from envace.report.table import (
    MINUS,
    Table,
    between,
    difference_cells,
    duration,
    fixed,
    reading,
    spread,
    table,
)
from envace.report.truth import READING, changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    label: str
    value: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    what: str
    difference: Estimate
    words: tuple[str, str] = ("better", "worse")


def sentence(study: Study) -> str:
    """What training did to success on the first benchmark, and whether that is outside noise."""
    first, runs = study.first, study.of_arm(study.main, study.first)
    x, y, g = study.score(study.of_arm(START, first)), study.score(runs), study.gain(runs, first)
    if g is None or x is None or y is None:
        return "No comparison of before and after: one of the two evaluations is not there."
    if x.value == y.value == 0:
        return f"No success to gain from: neither policy finishes a task of {first}."
    what = {"better": "Training raised", "worse": "Training lowered"}.get(
        reading(g), "No gain to be told from noise: training moved"
    )
    seeds = "one seed" if len(runs) == 1 else f"{len(runs)} seeds"
    steps = f", {study.training.steps[-1]['step']} optimizer steps" if study.training else ""
    return (
        f"{what} {metric_of(runs[0])} on {benchmark_label(first)} from {fixed(x.value)} to {fixed(y.value)}: "
        f"{g.value:+.3f} {between(g, '+.3f')} over {g.n_tasks} tasks, {seeds}{steps}."
    )


def tiles(study: Study) -> list[Tile]:
    """The few numbers to look at first."""
    found = []
    for benchmark in study.params.eval.benchmarks:
        g = study.gain(study.of_arm(study.main, benchmark), benchmark)
        found += [_change(f"{benchmark} gain, paired by task", g)] if g else []
    if gap := study.measured(study.name, "gap/collusion"):
        sides = [study.measured(study.name, f"gap/{side}") for side in ("rehearsed", "true")]
        rehearsed, true = (fixed(s.value if s else None) for s in sides)
        detail = f"{between(gap, '+.3f')} · rehearsed {rehearsed} {MINUS} true {true}"
        found.append(Tile(label="collusion gap", value=f"{gap.value:+.3f}", detail=detail))
    key = f"{study.mode}/recorded/exact"
    if exact := study.measured(study.name, key):
        before = study.measured(START, key)
        detail = between(exact) + (f" · before {spread(before)}" if before else "")
        found.append(Tile(label="exact on recorded calls", value=fixed(exact.value), detail=detail))
    largest: dict[str, EvalRun] = {}
    for run in sorted((r for r in study.results.tts if r.n), key=lambda r: r.n):
        largest[run.mode] = run
    for mode, run in largest.items():
        g = study.rehearsed(run)
        found += [_change(f"{run.n} private rehearsals, {mode}", g)] if g else []
    return found


def _change(label: str, g: Estimate) -> Tile:
    detail = f"{between(g, '+.3f')} · {reading(g)} · {g.n_tasks} tasks"
    return Tile(label=label, value=f"{g.value:+.3f}", detail=detail)


def claims(study: Study) -> list[Claim]:
    """Every comparison the report stands for, each after - before."""
    made, main, first, above = [], study.main, study.first, ("above", "below")

    def add(what: str, e: Estimate | None, words: tuple[str, str] = ("better", "worse")) -> None:
        if e is not None:
            made.append(Claim(what=what, difference=e, words=words))

    for benchmark in study.params.eval.benchmarks:
        runs, label = study.of_arm(main, benchmark), benchmark_label(benchmark)
        add(f"success after training against before, {label}", study.gain(runs, benchmark))
        blind = floors_of(runs[0]).get("blind") if runs else None
        if blind is not None and (e := study.score(runs)) is not None:
            add(f"success above the blind ceiling, {label}", e.minus(blind), above)
    for arm in study.arms:
        if arm != main:
            add(f"{main} against {arm}", study.over(arm, first), (f"{main} ahead", f"{main} behind"))
    add(
        "exact fidelity on recorded calls, after against before",
        changed(study, study.mode, "exact", recorded=True),
    )
    for policy in dict.fromkeys((START, study.name)):
        gap = study.measured(policy, "gap/collusion")
        add(f"collusion gap of {policy}, rehearsed against true success", gap, READING)
    for run in study.results.tts:
        add(f"{run.n} private rehearsals ({run.mode}) against none", study.rehearsed(run))
    return made


def compared(study: Study) -> Table | None:
    rows = [
        (c.what, *difference_cells(c.difference, c.words), str(c.difference.n_tasks)) for c in claims(study)
    ]
    return table("comparison | difference | 95 % interval | reading | tasks", rows)


def ran(study: Study) -> str:
    """What ran, by what it left."""
    run, evaluated = study.training, any(r.scores for r in study.results.evals)
    if run is None:
        return ""
    roles = " and ".join(r.upper() for r in study.params.resolved_method(arm_of(run.name)).roles)
    parts = [f"one policy trained as {roles} for {run.steps[-1]['step']} optimizer steps by stock verl"]
    parts += ["export"] if run.name in study.results.cards else []
    parts += ["evaluation in the true world"] if evaluated else []
    parts += (
        ["private rehearsal before committing"] if any(r.scores and r.n for r in study.results.tts) else []
    )
    return f"Ran: {', '.join(parts)}."


def total_cost(seconds: list[float | None]) -> str:
    known = [s for s in seconds if s is not None]
    return f"{len(known)} stages took {duration(sum(known))} in all, each as it last ran." if known else ""


def limits(study: Study) -> list[str]:
    """What this run does not show."""
    params, lacks = study.params, []
    if params.data.source == "desk":
        lacks.append(
            "Nothing about real tools, real users or long dialogues: the desk is a small embedded world."
        )
    done = {r.benchmark for r in study.results.bench if r.finished}
    absent = [title for b, title in paper.COLUMNS.items() if b not in done]
    if len(absent) == len(paper.COLUMNS):
        lacks.append(f"No public benchmark result: {', '.join(absent)} were not run.")
    elif absent:
        lacks.append(f"Not run: {', '.join(absent)}.")
    if params.policy.kind in ("bundled", "tiny"):
        lacks.append(
            "Nothing about language models of useful size: the policy is a tiny network made from scratch, "
            "and its scores do not carry over."
        )
    seeds = len({p for p in params.eval.policies if arm_of(p) == study.main})
    if seeds < 2:
        lacks.append(
            "No spread over training seeds: one seed was evaluated; intervals cover tasks and trials only."
        )
    else:
        lacks.append(
            f"{seeds} seeds are few: intervals cover tasks and trials, the table of seeds shows how far they "
            "differ."
        )
    if len(study.arms) < 2:
        lacks.append("One arm was trained; without a control its gain is not known to come from the reward.")
    if params.judge.kind == "rule":
        lacks.append("No judge model: checklist items are decided by rules.")
    return lacks
