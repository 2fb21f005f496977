"""What happened while training: curves of the headline run, and a line for every run.

Flows in: `Results`, parameters. Flows out: one section.
Invariant: a metric that was not logged has no curve and no row.
"""

from __future__ import annotations

from envace.config import Params
from envace.report import plots
from envace.report.names import arm_of, trained_name
from envace.report.part_gap import line
from envace.report.reader import number
from envace.report.results import Results, TrainRun
from envace.report.section import NOTHING, Section, captioned
from envace.report.table import DASH, Table, duration, fixed, table

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


def training(results: Results, params: Params) -> Section:
    runs = [t for t in results.train if t.steps]
    if not runs:
        return Section(id="training", title="Training", lead=NOTHING)
    run = next((r for r in runs if r.name == trained_name(params)), runs[0])
    first, last = (number(run.steps[k].get("train/reward")) for k in (0, -1))
    lead = (
        f"{run.name}: {run.steps[-1]['step']} optimizer steps. Mean episode reward went from {fixed(first)} "
        f"at step {run.steps[0]['step']} "
        f"to {fixed(last)} at step {run.steps[-1]['step']}; single steps are noisy. Both roles share one set "
        "of weights; "
        "each is compared with its own kind only."
    )
    return Section(
        id="training",
        title="Training",
        lead=lead,
        plots=tuple(s for s in (*_curves(run), _every_reward(runs)) if s),
        tables=captioned(
            ("Every training run", every_run(runs)), (f"First and last step, {run.name}", ends(run))
        ),
    )


def _curves(run: TrainRun) -> list[str]:
    svgs = []
    for key, title in CURVES:
        lines = [
            line(run, f"{role}/{key}", role, color)
            for role, color in (("act", plots.ACT), ("rehearse", plots.REHEARSE))
        ]
        svgs.append(plots.curves(f"training-{key}", title, lines))
    for key, title, color in SINGLES:
        name = f"training-{key.replace('/', '-')}"
        svgs.append(plots.curves(name, title, [line(run, key, title, color)]))
    return svgs


def _every_reward(runs: list[TrainRun]) -> str:
    """Judged reward of all runs, one colour an arm."""
    if len(runs) < 2:
        return ""
    arms = list(dict.fromkeys(arm_of(r.name) for r in runs))
    lines = [
        line(r, "train/reward", r.name, plots.CYCLE[arms.index(arm_of(r.name)) % len(plots.CYCLE)])
        for r in runs
    ]
    return plots.curves("training-all", "judged reward, every run", lines)


def every_run(runs: list[TrainRun]) -> Table | None:
    rows = []
    for r in runs:
        ends_of = [
            [number(r.steps[k].get(key)) for k in (0, -1)]
            for key in ("train/reward", "train/rehearsed_success")
        ]
        seconds = number(r.info.get("seconds"))
        rows.append(
            (
                r.name,
                str(r.steps[-1]["step"]),
                *(fixed(v) for pair in ends_of for v in pair),
                duration(seconds),
            )
        )
    columns = (
        "run",
        "steps",
        "reward, first step",
        "last step",
        "rehearsed success, first step",
        "last step",
        "time",
    )
    return table(columns, rows)


def ends(run: TrainRun) -> Table | None:
    """The same numbers as the curves, for readers of the Markdown report."""
    keys = [
        "train/reward",
        "train/rehearsed_success",
        *(f"{r}/{k}" for k, _ in CURVES for r in ("act", "rehearse")),
        *(k for k, _, _ in SINGLES),
        *sorted({k for s in run.steps for k in s if k.startswith("collapse/")}),
    ]
    rows = []
    for key in keys:
        pair = [number(run.steps[k].get(key)) for k in (0, -1)]
        if pair != [None, None]:
            rows.append((key, *(DASH if v is None else f"{v:.4g}" for v in pair)))
    return table(("metric", f"step {run.steps[0]['step']}", f"step {run.steps[-1]['step']}"), rows)
