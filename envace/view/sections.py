"""The parts of the report, each a `Section` built from `Results`.

Flows in: `Results`, parameters. Flows out: sections that both templates print.
Invariant: a section without results says so in its lead and is never left out, so that an empty report cannot
pass for a complete one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from envace.params import Params
from envace.types import Episode
from envace.view import ledger, measures, paper, plots, reasons, tables
from envace.view.episode import episode_html, episode_text
from envace.view.load import EvalRun, FidelityRun, Results, TrainRun, number
from envace.view.table import DASH, Table, fixed, table

NOTHING = "Nothing to show yet: the stage has left no results."


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """An episode, in both forms."""

    title: str
    html: str  # escaped by the episode view
    text: str
    open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    id: str
    title: str
    lead: str = ""
    plots: tuple[str, ...] = ()  # SVG of this package's own making
    wide: bool = False
    tables: tuple[tuple[str, Table], ...] = ()  # (caption, table)
    fragments: tuple[Fragment, ...] = ()


def _captioned(*pairs: tuple[str, Table | None]) -> tuple[tuple[str, Table], ...]:
    return tuple((caption, t) for caption, t in pairs if t is not None)


# --- sections -----------------------------------------------------------------------------------------------


def scores(results: Results, params: Params) -> Section:
    gains, all_scores = tables.gains(results, params), tables.scores(results, params)
    bars = []
    for run in results.evals:
        e = measures.estimate(run, params.report.bootstrap)
        if e is not None and run.benchmark == params.eval.benchmarks[0]:
            record = measures.record_of(run, measures.metric_of(run))
            floors = {k.replace("_", " "): v for k, v in record.floors.items()} if record else {}
            color = plots.SOFT if run.policy == "start" else plots.ACCENT
            bars.append(
                plots.Bar(label=run.policy, value=e.value, low=e.low, high=e.high, color=color, marks=floors)
            )
    lead = NOTHING
    if all_scores:
        lead = (
            f"Committed runs against the true source, {params.eval.benchmarks[0]} first, sampled at temperature {params.eval.temperature:g}. "
            "Intervals are 95 %, bootstrapped over tasks; a failure of the agent counts 0. Floors are agents that do nothing or act at random."
        )
    metric = next((measures.metric_of(r) for r in results.evals if r.scores or r.samples), "score")
    svg = plots.intervals("scores", bars, xlabel=f"{params.eval.benchmarks[0]} {metric}")
    return Section(
        id="scores", title="Scores before and after", lead=lead, wide=True, plots=(svg,) if svg else (),
        tables=_captioned(("Before against after", gains), ("All scores", all_scores)),
    )  # fmt: skip


CURVES = (
    ("reward", "reward"),
    ("adv_std", "advantage, standard deviation"),
    ("rows", "rows"),
    ("tokens", "tokens learned from"),
)
SINGLES = (
    ("train/unscored", "episodes unscored, share", plots.WARN),
    ("seconds/step", "seconds a step", plots.SOFT),
    ("gap/probs_mean", "sampled minus recomputed probability", plots.WARN),
)


def training(results: Results) -> list[Section]:
    runs = [t for t in results.train if t.steps]
    if not runs:
        return [Section(id="training", title="Training", lead=NOTHING)]
    return [_training(run, f"training-{i}" if i else "training") for i, run in enumerate(runs)]


def _training(run: TrainRun, anchor: str) -> Section:
    svgs = []
    for key, title in CURVES:
        lines = [
            _series(run, f"{role}/{key}", role, color)
            for role, color in (("act", plots.ACT), ("rehearse", plots.REHEARSE))
        ]
        svgs.append(plots.curves(f"{anchor}-{key}", title, lines))
    for key, title, color in SINGLES:
        svgs.append(
            plots.curves(f"{anchor}-{key.replace('/', '-')}", title, [_series(run, key, title, color)])
        )
    first, last = (number(run.steps[k].get("train/reward")) for k in (0, -1))
    lead = (
        f"{run.steps[-1]['step']} optimizer steps. Mean episode reward went from {fixed(first)} at step {run.steps[0]['step']} "
        f"to {fixed(last)} at step {run.steps[-1]['step']}; single steps are noisy. Both roles share one set of weights; "
        "each is compared with its own kind only."
    )
    return Section(
        id=anchor,
        title=f"Training {run.name}",
        lead=lead,
        plots=tuple(s for s in svgs if s),
        tables=_captioned(("First and last step", _ends(run))),
    )


def _series(run: TrainRun, key: str, label: str, color: str) -> plots.Series:
    points = [(s["step"], v) for s in run.steps if (v := number(s.get(key))) is not None]
    return plots.Series(
        label=label, color=color, xs=tuple(p[0] for p in points), ys=tuple(p[1] for p in points)
    )


def _ends(run: TrainRun) -> Table | None:
    """The same numbers as the curves, for readers of the Markdown report."""
    keys = [
        "train/reward",
        *(f"{r}/{k}" for k, _ in CURVES for r in ("act", "rehearse")),
        *(k for k, _, _ in SINGLES),
    ]
    rows = []
    for key in keys:
        ends = [number(run.steps[k].get(key)) for k in (0, -1)]
        if ends != [None, None]:
            rows.append((key, *(DASH if v is None else f"{v:.4g}" for v in ends)))
    return table(("metric", f"step {run.steps[0]['step']}", f"step {run.steps[-1]['step']}"), rows)


def stops(results: Results) -> Section:
    stop, failure = reasons.reasons(results, "stop"), reasons.reasons(results, "failure")
    lead = (
        "Every episode ends for one named reason; every generation or call that goes wrong is counted under one."
        if stop
        else NOTHING
    )
    return Section(
        id="reasons",
        title="Stop and failure reasons",
        lead=lead,
        tables=_captioned(("Why episodes ended", stop), ("What went wrong inside them", failure)),
    )


def scaling(results: Results, params: Params) -> Section:
    found = tables.tts(results, params)
    lead = NOTHING
    if found:
        lead = (
            f"{params.tts.policy} rehearses a task in private, condenses what it imagined into a memory, then acts once for real. "
            "The control goes through the same code with no rehearsal; differences are paired by task."
        )
    bars = []
    for run in results.tts:
        g = (
            measures.gain(measures.find_tts(results, run.mode, 0), run, params.report.bootstrap)
            if run.n
            else None
        )
        if g is not None:
            bars.append(
                plots.Bar(
                    label=f"{run.mode}, {run.n}", value=g.value, low=g.low, high=g.high, color=plots.REHEARSE
                )
            )
    svg = plots.intervals("tts", bars, xlabel="difference to no rehearsal", zero=True)
    return Section(
        id="tts",
        title="Rehearsing before committing",
        lead=lead,
        wide=True,
        plots=(svg,) if svg else (),
        tables=_captioned(
            ("Test-time scaling", found),
            ("Some memories, as the committed run reads them", _memories(results)),
        ),
    )


def truth(results: Results, params: Params) -> Section:
    found, gap = tables.fidelity(results), tables.collusion(results, params)
    lead = NOTHING
    if found or gap:
        lead = "How close rehearsed responses come to those of the true world, and whether success in rehearsal means success outside."
    calls = [(f"Some rehearsed calls, {f.policy}", _calls(f)) for f in results.fidelity[-1:]]
    return Section(
        id="fidelity",
        title="Fidelity and the collusion gap",
        lead=lead,
        tables=_captioned(("Rehearsed against true responses", found), ("Collusion gap", gap), *calls),
    )


def _memories(results: Results) -> Table | None:
    told = [
        (r.name, task, _short(text, 400))
        for r in results.tts
        for task, text in list(r.memories.items())[:2]
        if text
    ]
    return table(("rehearsals", "task", "memory"), told)


CALLS_SHOWN = 6


def _calls(run: FidelityRun) -> Table | None:
    """A few measured calls of the first mode, spread over the file."""
    mode = run.calls[0].get("few_shot") if run.calls else None
    calls = [c for c in run.calls if c.get("few_shot") == mode and "rehearsed" in c]
    picked = calls[:: max(1, len(calls) // CALLS_SHOWN)][:CALLS_SHOWN]
    rows = [
        (
            _call(c.get("call")),
            _short(c.get("truth")),
            _short(c.get("rehearsed") or c.get("text")),
            "yes" if c.get("exact") else "no",
        )
        for c in picked
    ]
    return table(("call", "true response", "rehearsed response", "equal"), rows)


def _call(call: object) -> str:
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
        return _short(call)
    return _short(f"{call.get('name')}({', '.join(f'{k}={v}' for k, v in call['arguments'].items())})")


def _short(value: object, limit: int = 140) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def episodes(results: Results, params: Params) -> Section:
    """One rehearsed episode of training, one true episode of evaluation, and the same task before training."""
    shown = []
    name = measures.trained_name(params)
    run = next((t for t in results.train if t.shown and t.name == name), None) or next(
        (t for t in results.train if t.shown), None
    )
    if run is not None and run.shown is not None:
        world = "rehearsed world" if measures.rehearses(params, run.name) else "true world"
        where = f"step {run.shown_step}" if run.shown_step else "the last step"
        shown.append(
            _fragment(f"Training {run.name}, {world}, {where}: best rewarded of the step", run.shown, results)
        )
    after = measures.find_eval(results, name, "desk") or measures.find_eval(results, "start", "desk")
    chosen = _pick(after) if after else None
    if after is not None and chosen is not None:
        won = {1.0: "succeeded", 0.0: "did not succeed"}.get(_success(after, chosen), "")
        shown.append(
            _fragment(f"Evaluation {after.policy}, true world{': ' + won if won else ''}", chosen, results)
        )
        before = measures.find_eval(results, "start", "desk")
        same = (
            next((e for e in before.episodes if e.task_id == chosen.task_id), None)
            if before and before is not after
            else None
        )
        if same is not None:
            shown.append(_fragment("The same task before training, true world", same, results, open=False))
    lead = (
        "One episode step by step. In training the responses of tools are written by the policy itself, in evaluation by the true world."
        if shown
        else NOTHING
    )
    return Section(id="episodes", title="Episodes", lead=lead, fragments=tuple(shown))


def _fragment(title: str, episode: Episode, results: Results, *, open: bool = True) -> Fragment:
    task = results.tasks.get(episode.task_id)
    return Fragment(
        title=title,
        html=episode_html(episode, task),
        text=episode_text(episode, task, color=False),
        open=open,
    )


def _pick(run: EvalRun) -> Episode | None:
    """A succeeding episode where there is one, the longest of its kind."""
    return max(
        run.episodes, key=lambda e: (_success(run, e) or 0.0, e.reward or 0.0, len(e.messages)), default=None
    )


def _success(run: EvalRun, episode: Episode) -> float | None:
    sample = next((s for s in run.samples if s.episode_id == episode.id), None)
    return number(sample.metrics.get("success", sample.reward)) if sample else None


def cost(results: Results) -> Section:
    found = ledger.cost(results)
    return Section(
        id="cost",
        title="Cost",
        lead="" if found else NOTHING,
        tables=_captioned(("Time and tokens a stage", found)),
    )


def published(results: Results) -> Section:
    run = sorted({r.benchmark for r in results.evals if r.scores or r.samples})
    found = paper.printed(run)
    if found:
        return Section(
            id="paper",
            title="The paper's numbers",
            lead="For comparison with the benchmarks that were run here.",
            tables=_captioned(("Paper", found)),
        )
    lead = f"The paper reports {', '.join(paper.COLUMNS.values())}. These benchmarks were not run here, so its numbers are not shown beside ours."
    return Section(id="paper", title="The paper's numbers", lead=lead)


def lineage(results: Results, params: Params, root: Path) -> Section:
    return Section(
        id="lineage", title="Lineage", lead="What this report was made from.",
        tables=_captioned(("Origin", ledger.lineage(results, params, root)), ("Method, as resolved", ledger.method(params))),
    )  # fmt: skip
