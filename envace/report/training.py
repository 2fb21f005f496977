"""Sections on training: its curves, the scores of kept steps, test-time scaling, and why episodes ended.

Invariant: a metric that was not logged has no curve and no row; every point of test-time scaling is compared
with the one control on the same tasks and trials; each known reason has its sentence, an unknown one is shown
without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from envace.report import paper, plots
from envace.report.bench_scores import HEADLINES, find, headline, key_of, score_of
from envace.report.estimates import estimate, number
from envace.report.results import EvalRun, TrainRun
from envace.report.study import BENCHMARKS, START, Study, arm_of
from envace.report.table import (
    DASH,
    Section,
    Table,
    between,
    captioned,
    count,
    difference_cells,
    duration,
    fixed,
    short,
    spread,
    table,
    trials,
)
from envace.report.truth import line
from envace.types import JSON, FailureReason, StopReason

ROLES = {"act": plots.ACT, "rehearse": plots.REHEARSE}
BY_ROLE = {
    "reward": "reward",
    "adv_std": "advantage, standard deviation",
    "rows": "rows",
    "tokens": "tokens learned from",
}
SINGLES = {
    "train/unscored": ("episodes unscored, share", plots.WARN),
    "seconds/step": ("seconds a step", plots.SOFT),
    "gap/probs_mean": ("sampled minus recomputed probability", plots.WARN),
}
MODES = {"parallel": plots.REHEARSE, "sequential": plots.ACT}


def training(study: Study) -> Section:
    run, runs = study.training, [t for t in study.results.train if t.steps]
    if run is None:
        return Section(id="training", title="Training")
    first, last = run.steps[0], run.steps[-1]
    ends = [fixed(number(s.get("train/reward"))) for s in (first, last)]
    return Section(
        id="training",
        title="Training",
        lead=f"{run.name}: {last['step']} optimizer steps. Mean episode reward went from {ends[0]} at step "
        f"{first['step']} to {ends[1]} at step {last['step']}; single steps are noisy. Both roles share one "
        "set of weights; each is compared with its own kind only.",
        plots=tuple(filter(None, [*_curves(run), _every_reward(runs)])),
        tables=captioned(
            ("Every training run", every_run(runs)), (f"First and last step, {run.name}", both_ends(run))
        ),
    )


def _curves(run: TrainRun) -> list[str]:
    svgs = []
    for key, title in BY_ROLE.items():
        lines = [line(run, f"{role}/{key}", role, color) for role, color in ROLES.items()]
        svgs.append(plots.curves(f"training-{key}", title, lines))
    for key, (title, color) in SINGLES.items():
        name = f"training-{key.replace('/', '-')}"
        svgs.append(plots.curves(name, title, [line(run, key, title, color)]))
    return svgs


def _every_reward(runs: list[TrainRun]) -> str:
    """Judged reward of all runs, one colour an arm."""
    arms = list(dict.fromkeys(arm_of(r.name) for r in runs))
    colors = [plots.CYCLE[arms.index(arm_of(r.name)) % len(plots.CYCLE)] for r in runs]
    lines = [line(r, "train/reward", r.name, c) for r, c in zip(runs, colors, strict=True)]
    return plots.curves("training-all", "judged reward, every run", lines) if len(runs) > 1 else ""


def every_run(runs: list[TrainRun]) -> Table | None:
    rows = []
    for r in runs:
        keys = ("train/reward", "train/rehearsed_success")
        cells = (fixed(number(r.steps[k].get(key))) for key in keys for k in (0, -1))
        rows.append((r.name, str(r.steps[-1]["step"]), *cells, duration(number(r.info.get("seconds")))))
    columns = (
        "run | steps | reward, first step | last step | rehearsed success, first step | last step | time"
    )
    return table(columns, rows)


def both_ends(run: TrainRun) -> Table | None:
    """The same numbers as the curves, for readers of the Markdown report."""
    keys = [
        "train/reward",
        "train/rehearsed_success",
        *(f"{r}/{k}" for k in BY_ROLE for r in ROLES),
        *SINGLES,
    ]
    keys += sorted({k for s in run.steps for k in s if k.startswith("collapse/")})
    rows = []
    for key in keys:
        pair = [number(run.steps[k].get(key)) for k in (0, -1)]
        if pair != [None, None]:
            rows.append((key, *(DASH if v is None else f"{v:.4g}" for v in pair)))
    return table(f"metric | step {run.steps[0]['step']} | step {run.steps[-1]['step']}", rows)


# --- scores of kept steps -----------------------------------------------------------------------------------


def dynamics(study: Study) -> Section:
    """The curve of training: what kept steps score, and the paper's two points beside it where the benchmark
    is its own."""
    points = sorted((r for r in study.results.dynamics if r.finished), key=lambda r: r.n)
    names = list(dict.fromkeys(r.benchmark for r in points))
    note = study.small_policy_note([]) if set(names) - set(BENCHMARKS) else ""
    rows = []
    for r in sorted(points, key=lambda r: (r.benchmark, r.policy)):
        if (s := headline(r)) is not None:
            value = spread(score_of(s)) if s.score is not None else "withheld"
            cells = (f"{s.subset} {s.metric}", value, str(s.n_tasks), trials(s.n_trials))
            rows.append((r.benchmark, r.policy, str(r.n), *cells))
    every = table("benchmark | training | step | score | value and interval | tasks | trials", rows)
    return Section(
        id="dynamics",
        title="Score along training",
        wide=True,
        lead="Weights that training kept, evaluated one step after another on the same cut of the tasks "
        "(dynamics.limit, dynamics.trials): a curve to compare steps by, not final scores. Bars are 95 % "
        f"intervals. {note}",
        plots=tuple(filter(None, (_curve(points, name) for name in names))),
        tables=captioned(("Every point", every), ("Paper", paper.printed_curves(names))),
    )


def _curve(points: list[EvalRun], benchmark: str) -> str:
    """One score in one plot: a point that lacks it has no place there, but in the table."""
    own = [r for r in points if r.benchmark == benchmark]
    heads = [key_of(s) for r in own if (s := headline(r)) is not None and s.score is not None]
    if not heads:
        return ""
    key, lines = max(heads, key=heads.count), []
    for k, run in enumerate(dict.fromkeys(r.policy for r in own)):
        found = [(r.n, e) for r in own if r.policy == run and (e := score_of(find(r, key)))]
        lines.append(plots.Series(label=run, color=plots.CYCLE[k % 4], points=found))
    if key == HEADLINES.get(benchmark, ((),))[0] and benchmark in paper.CURVES:
        printed = [(x, y / 100) for x, y in paper.CURVES[benchmark]]
        lines.append(plots.Series(label=f"paper, {paper.CURVE_OF}", color=plots.SOFT, points=printed))
    return plots.curves(f"dynamics-{benchmark}", f"{benchmark}, {key[0]} {key[1]}", lines, wide=True)


# --- test-time scaling --------------------------------------------------------------------------------------


def scaling(study: Study) -> Section:
    tts = study.results.tts
    bars = [
        plots.Bar(label=f"{run.mode}, {run.n}", at=g, color=MODES.get(run.mode, plots.REHEARSE))
        for run in tts
        if (g := study.rehearsed(run)) is not None
    ]
    memories = [
        (run.name, task, short(text, 400))
        for run in tts
        for task, text in list(run.memories.items())[:2]
        if text
    ]
    gain = plots.intervals("tts", bars, xlabel="difference to no rehearsal", zero=True)
    return Section(
        id="tts",
        title="Rehearsing before committing",
        lead=f"{study.params.tts.policy} rehearses a task in private, condenses what it imagined into a "
        "memory, then acts once for real. The control goes through the same code with no rehearsal and is "
        "measured once for all modes; differences are paired by task.",
        wide=True,
        plots=tuple(filter(None, [gain, *_scaling_curves(study)])),
        tables=captioned(
            ("Test-time scaling", points(study)),
            ("What the policy wrote about its rehearsals", written(study)),
            (
                "Some memories, as the committed run reads them",
                table("rehearsals | task | memory", memories),
            ),
        ),
    )


def _private(run: EvalRun) -> float | None:
    """Tokens read and written in private, a committed run."""
    runs, tokens = run.rehearsal.get("runs"), run.rehearsal.get("tokens")
    return (tokens / runs if runs and tokens is not None else None) if run.n else 0.0


def points(study: Study) -> Table | None:
    rows = []
    for run in study.results.tts:
        if (e := estimate(run, study.n)) is not None:
            what = f"{run.mode}, {run.n}" if run.n else "none (control)"
            cells = (
                fixed(e.value),
                between(e),
                *difference_cells(study.rehearsed(run)),
                count(_private(run)),
            )
            rows.append((what, *cells, str(e.n_tasks), trials(e.trials)))
    columns = (
        "private rehearsals | success | 95 % interval | against the control | 95 % interval | reading | "
        "tokens a run | tasks | trials"
    )
    return table(columns, rows, "Tokens a run: read and written in private, on top of the committed run.")


def written(study: Study) -> Table | None:
    """How often self-evaluations and condensations could be used."""
    rows = []
    for run in (r for r in study.results.tts if r.n and r.rehearsal):
        r, cells = run.rehearsal, []
        for what, all_of in (("self_evaluation", "attempts"), ("condensation", "runs")):
            good, whole = r.get(f"{what}s"), r.get(all_of)
            share = DASH
            if good is not None and whole:
                share = f"{good:.0f} / {whole:.0f} ({100 * good / whole:.0f} %)"
            cells.append(share)
            cells.append(count(r.get(f"{what}_fallbacks")))
        rows.append((run.name, *cells, count(r.get("empty_memories"))))
    columns = "point | usable self-evaluations | replaced | usable condensations | replaced | empty memories"
    note = (
        "One that is malformed twice is replaced by a digest of names and outcomes made without the policy."
    )
    return table(columns, rows, note)


def _scaling_curves(study: Study) -> list[str]:
    """Success over the number of rehearsals and over the tokens they took, a line a mode from the control
    on."""
    lines: dict[str, list[plots.Series]] = {"n": [], "tokens": []}
    for mode, color in MODES.items():
        runs = sorted((r for r in study.results.tts if r.mode == mode and r.finished), key=lambda r: r.n)
        found = [(r, estimate(r, study.n)) for r in ([study.control, *runs] if runs else []) if r]
        for axis, own in lines.items():
            xs = [float(r.n) if axis == "n" else _private(r) for r, _ in found]
            given = [(x, e) for x, (_, e) in zip(xs, found, strict=True) if x is not None and e is not None]
            own.append(plots.Series(label=mode, color=color, points=given))
    title = "success of the committed run"
    labels = {"n": "private rehearsals a run", "tokens": "tokens read and written in private, a run"}
    return [plots.curves(f"tts-{a}", title, own, xlabel=labels[a], wide=True) for a, own in lines.items()]


# --- reasons ------------------------------------------------------------------------------------------------

MEANING: dict[StopReason | FailureReason, str] = {
    StopReason.DONE: "the last user turn was answered",
    StopReason.REQUIRED_ITEM: "an item the next turn builds on was not met",
    StopReason.JUDGE_FAILED: "no verdict could be had; unscored",
    StopReason.STEP_BUDGET: "as many ACT generations as allowed",
    StopReason.CALL_BUDGET: "as many tool calls as allowed",
    StopReason.CONTEXT_BUDGET: "no room for another generation",
    StopReason.ERROR_BUDGET: "more failed calls than allowed",
    StopReason.TOOL_ERROR: "an invalid call or a broken response ends the episode",
    StopReason.DEADLINE: "longer than the wall clock allows; unscored",
    StopReason.CANCELLED: "the run stopped meanwhile",
    StopReason.POLICY_FAILED: "the policy raised; unscored",
    StopReason.SOURCE_FAILED: "whoever answers calls raised; unscored",
    FailureReason.EMPTY_OUTPUT: "no visible text",
    FailureReason.TRUNCATED: "the token budget ran out",
    FailureReason.NO_CALL_FOUND: "a call tag without a readable block",
    FailureReason.BAD_JSON: "the call is not JSON",
    FailureReason.NO_ARGUMENTS: "arguments missing or no object",
    FailureReason.NO_NAME: "no tool named",
    FailureReason.UNKNOWN_TOOL: "a tool the task does not offer",
    FailureReason.SCHEMA_VIOLATION: "arguments break the tool's schema",
    FailureReason.INVALID_CALL: "found invalid by REHEARSE, who checks calls",
    FailureReason.TOO_MANY_CALLS: "more parallel calls than allowed",
    FailureReason.NO_RESULT_TAG: "REHEARSE wrote no result block",
    FailureReason.RESULT_TAG_MALFORMED: "REHEARSE's result block is open or doubled",
    FailureReason.RESULT_BAD_JSON: "REHEARSE's result is not JSON",
    FailureReason.RESULT_BAD_TYPE: "REHEARSE's result is no object or list",
    FailureReason.PROMPT_TOO_LONG: "the prompt does not fit",
    FailureReason.NO_RECORD: "no recorded result for the call",
}


def reasons(study: Study) -> Section:
    return Section(
        id="reasons",
        title="Stop and failure reasons",
        lead="Every episode ends for one named reason; every generation or call that goes wrong is counted "
        "under one.",
        tables=captioned(
            ("Why episodes ended", _reasons(study, "stop")),
            ("What went wrong inside them", _reasons(study, "failure")),
        ),
    )


def _reasons(study: Study, kind: str) -> Table | None:
    """How often each, in the headline arm's training and in its evaluation before and after."""
    columns: dict[str, Counter[str]] = {}
    for run in study.results.train:
        if run.steps and arm_of(run.name) == (study.main or arm_of(run.name)):
            found: Counter[str] = Counter()
            for step in run.steps:
                found.update(_counts(step, kind))
            columns[f"training {run.name}"] = found
    for e in (r for r in study.results.evals if r.benchmark == study.first):
        if e.policy in (START, study.name) and (e.episodes or (e.samples and kind == "stop")):
            stops = Counter(s.stop for s in e.samples if s.stop)
            failures: Counter[str] = Counter()
            for episode in e.episodes:
                failures.update(_counts(episode.counters, kind))
            columns[f"{e.benchmark} {e.policy}"] = stops if kind == "stop" else failures
    seen = {name for counts in columns.values() for name, n in counts.items() if n}
    known = {r.value: meaning for r, meaning in MEANING.items()}
    ordered = [r for r in known if r in seen] + sorted(seen - known.keys())
    rows = [(r, known.get(r, ""), *(str(c[r]) for c in columns.values())) for r in ordered]
    if rows and kind == "stop":
        rows.append(("all", "", *(str(sum(c.values())) for c in columns.values())))
    return table(" | ".join((f"{kind} reason", "meaning", *columns)), rows)


def _counts(counters: Mapping[str, JSON], kind: str) -> dict[str, int]:
    """`{"stop/done": 3}` -> `{"done": 3}`."""
    own = {k.partition("/")[2]: v for k, v in counters.items() if k.startswith(f"{kind}/")}
    return {k: int(v) for k, v in own.items() if number(v)}
