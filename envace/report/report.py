"""Builds the report: a page, a Markdown file and a flat summary.

Flows in: the project's folder and the parameters. Flows out: report/index.html (one file, no request leaves
it), report/report.md, report/summary.json.
Invariant: built from whatever is there; what is not there is listed; each file is replaced whole."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

from envace.config import Params
from envace.errors import EnvironmentUnready
from envace.report import origin, scores, staged, training, truth, verdict
from envace.report.bench import bench
from envace.report.episode import episode_html, episode_text, templates
from envace.report.estimates import number
from envace.report.load import load_results
from envace.report.results import EvalRun
from envace.report.study import START, Study
from envace.report.summary import summary
from envace.report.table import Fragment, Section, captioned, clean
from envace.types import Episode

ABOUT = (
    "One language-model policy learns to use tools by playing both sides: ACT calls the tools, REHEARSE "
    "writes the world's responses, and each role is rewarded against its own kind."
)
GLOSSARY = {
    "ACT, REHEARSE": "the policy's two roles: who calls tools and replies; who writes the tools' responses.",
    "arm": "one way of training, with all its seeds; a control leaves one thing out.",
    "blind ceiling": "the best success of an agent that never reads a response.",
    "checklist, required item": "what a turn's reward is made of; an item without which the turn has failed.",
    "collusion gap": "success in the rehearsed world minus success in the true one, by the same items.",
    "episode, turn": "one run of a task; one user message and all that answers it.",
    "inside noise": "the 95 % interval, resampled over tasks, holds zero.",
    "success": "every required item holds in the true transcript, and the end state is the expert's.",
}


def build(root: Path, params: Params, stage_seconds: dict[str, float] | None = None) -> dict[str, float]:
    """Write report/ below `root`; returns the summary. Raises EnvironmentUnready when it cannot be written.

    stage_seconds: what each stage took, by its name (`export@envace-1`), for the stages that leave no such
    figure."""
    root = Path(root)
    study = Study(replace(load_results(root, params), stage_seconds=stage_seconds or {}), params)
    page, numbers = _page(study, root), summary(study)
    _write(root / "report/index.html", templates().get_template("report.html.jinja").render(**page))
    _write(root / "report/report.md", _markdown(page))
    _write(root / "report/summary.json", json.dumps(numbers, indent=2, sort_keys=True) + "\n")
    return numbers


def _page(study: Study, root: Path) -> dict[str, object]:
    params, results = study.params, study.results
    sections = [
        episodes(study),
        scores.scores(study),
        scores.controls(study),
        bench(study),
        training.dynamics(study),
        truth.gap(study),
        truth.fidelity(study),
        training.scaling(study),
        training.training(study),
        training.reasons(study),
        staged.world(study),
        staged.data(study),
        origin.cost(study),
        origin.lineage(study, root),
    ]
    return {
        "title": clean(params.report.title),
        "about": ABOUT,
        "subtitle": clean(f"size {params.size} · preset {params.method.preset} · seed {params.seed}"),
        "verdict": verdict.sentence(study),
        "ran": verdict.ran(study),
        "cost": verdict.total_cost([c.seconds for c in origin.costs(study)]),
        "tiles": verdict.tiles(study),
        "compared": captioned(("Every comparison", verdict.compared(study))),
        "limits": verdict.limits(study),
        "missing": [clean(m) for m in results.missing],
        "problems": [clean(p) for p in results.problems],
        "sections": [s for s in sections if not s.empty],
        "absent": [s.title for s in sections if s.empty],
        "glossary": GLOSSARY,
    }


def episodes(study: Study) -> Section:
    """Step by step: one true episode after training, the same task before, one rehearsed in training."""
    shown, name, first = [], study.name, study.first
    before, after = study.find(START, first), study.find(name, first) or study.find(START, first)
    chosen = _pick(after) if after else None
    if after is not None and chosen is not None:
        won = {1.0: ": succeeded", 0.0: ": did not succeed"}.get(_success(after, chosen) or 0.0, "")
        shown.append(_fragment(study, f"Evaluation {after.policy}, true world{won}", chosen, open=True))
        own = before.episodes if before is not None and before is not after else ()
        same = [e for e in own if e.task_id == chosen.task_id][:1]
        shown += [_fragment(study, "The same task before training, true world", e) for e in same]
    runs = [t for t in study.results.train if t.shown]
    run = next((t for t in runs if t.name == name), runs[0] if runs else None)
    if run is not None and run.shown is not None:
        source = "rehearsed world" if study.rehearses(run.name) else "true world"
        where = f"step {run.shown_step}" if run.shown_step else "the last step"
        title = f"Training {run.name}, {source}, {where}: best rewarded of the step"
        shown.append(_fragment(study, title, run.shown, open=not shown))
    lead = "In training the policy itself writes the responses of tools, in evaluation the true world does."
    return Section(id="episodes", title="One episode step by step", lead=lead, fragments=tuple(shown))


def _fragment(study: Study, title: str, episode: Episode, *, open: bool = False) -> Fragment:
    task = study.results.tasks.get(episode.task_id)
    text = episode_text(episode, task, color=False)
    return Fragment(title=title, html=episode_html(episode, task), text=text, open=open)


def _pick(run: EvalRun) -> Episode | None:
    """A succeeding episode where there is one, the shortest of its kind that calls a tool."""

    def rank(e: Episode) -> tuple[float, float, bool, int]:
        return _success(run, e) or 0.0, e.reward or 0.0, bool(e.observations), -len(e.messages)

    return max(run.episodes, key=rank, default=None)


def _success(run: EvalRun, episode: Episode) -> float | None:
    sample = next((s for s in run.samples if s.episode_id == episode.id), None)
    return number(sample.metrics.get("success", sample.reward)) if sample else None


def _markdown(page: dict[str, object]) -> str:
    """The same page as Markdown: cells cannot break their table, episodes cannot leave their fence."""
    env = templates().overlay(autoescape=False)
    env.filters = {**env.filters, "cell": _cell, "fenced": _fenced}
    text = env.get_template("report.md.jinja").render(**page)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _cell(text: str) -> str:
    """Text that stays one inert table cell (or line) in Markdown."""
    flat = re.sub(r"\s+", " ", clean(text))
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", flat).replace("\\<", "&lt;").replace("\\>", "&gt;")


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks inside it."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as e:
        raise EnvironmentUnready(
            f"cannot write {path}: {e.strerror}; check that the folder is writable and the disk not full"
        ) from e
