"""Episodes step by step: one rehearsed in training, one true after it, and the same task before.

Flows in: `Results`, parameters. Flows out: one section.
Invariant: everything a model or a tool wrote goes through the episode view, which escapes it.
"""

from __future__ import annotations

from envace.config import Params
from envace.report.names import START, find_eval, rehearses, trained_name
from envace.report.reader import number
from envace.report.results import EvalRun, Results
from envace.report.section import NOTHING, Fragment, Section, fragment
from envace.types import Episode


def episodes(results: Results, params: Params) -> Section:
    shown = [*_training(results, params), *_evaluation(results, params)]
    lead = NOTHING
    if shown:
        lead = (
            "One episode step by step. In training the responses of tools are written by the policy itself, "
            "in evaluation by the true world."
        )
    return Section(id="episodes", title="Episodes", lead=lead, fragments=tuple(shown))


def _training(results: Results, params: Params) -> list[Fragment]:
    name = trained_name(params)
    runs = [t for t in results.train if t.shown]
    run = next((t for t in runs if t.name == name), runs[0] if runs else None)
    if run is None or run.shown is None:
        return []
    source = "rehearsed world" if rehearses(params, run.name) else "true world"
    where = f"step {run.shown_step}" if run.shown_step else "the last step"
    title = f"Training {run.name}, {source}, {where}: best rewarded of the step"
    return [fragment(title, run.shown, results)]


def _evaluation(results: Results, params: Params) -> list[Fragment]:
    first = params.eval.first
    before = find_eval(results, START, first)
    after = find_eval(results, trained_name(params), first) or before
    chosen = _pick(after) if after else None
    if after is None or chosen is None:
        return []
    won = {1.0: ": succeeded", 0.0: ": did not succeed"}.get(_success(after, chosen), "")
    shown = [fragment(f"Evaluation {after.policy}, true world{won}", chosen, results)]
    if before is not None and before is not after:
        same = next((e for e in before.episodes if e.task_id == chosen.task_id), None)
        if same is not None:
            shown.append(fragment("The same task before training, true world", same, results, open=False))
    return shown


def _pick(run: EvalRun) -> Episode | None:
    """A succeeding episode where there is one, the longest of its kind."""
    return max(
        run.episodes, key=lambda e: (_success(run, e) or 0.0, e.reward or 0.0, len(e.messages)), default=None
    )


def _success(run: EvalRun, episode: Episode) -> float | None:
    sample = next((s for s in run.samples if s.episode_id == episode.id), None)
    return number(sample.metrics.get("success", sample.reward)) if sample else None
