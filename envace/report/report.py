"""Builds the report: a page, a Markdown file and a flat summary.

Flows in: the project's folder and the parameters. Flows out: report/index.html (one file, no request leaves
it), report/report.md, report/summary.json.
Invariant: built from whatever is there, and what is not there is listed on top; each file is replaced whole.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from envace.config import Params
from envace.errors import EnvironmentUnready
from envace.report import headline, part_rest, words
from envace.report.episode import clean, templates
from envace.report.load import load_results
from envace.report.part_bench import bench
from envace.report.part_controls import controls
from envace.report.part_data import data
from envace.report.part_dynamics import dynamics
from envace.report.part_episodes import episodes
from envace.report.part_gap import gap
from envace.report.part_scaling import scaling
from envace.report.part_scores import scores
from envace.report.part_training import training
from envace.report.part_truth import truth
from envace.report.part_world import world
from envace.report.results import Results
from envace.report.section import Section
from envace.report.summary import summary

ABOUT = (
    "One language-model policy learns to use tools by playing both sides: ACT calls the tools, REHEARSE "
    "writes the world's responses, "
    "and each role is rewarded against its own kind."
)


def build(root: Path, params: Params, stage_seconds: dict[str, float] | None = None) -> dict[str, float]:
    """Write report/ below `root`; returns the summary. Raises EnvironmentUnready when it cannot be written.

    stage_seconds: what each stage took, by its name (`export@envace-1`), for the stages that leave no such
    figure."""
    root = Path(root)
    results = replace(load_results(root, params), stage_seconds=stage_seconds or {})
    page = _page(results, params, root)
    numbers = summary(results, params)
    _write(root / "report/index.html", _render("report.html.jinja", page))
    _write(root / "report/report.md", _markdown(page))
    _write(root / "report/summary.json", json.dumps(numbers, indent=2, sort_keys=True) + "\n")
    return numbers


def _page(results: Results, params: Params, root: Path) -> dict[str, Any]:
    shows, lacks = words.honest(results, params)
    return {
        "title": clean(params.report.title),
        "about": ABOUT,
        "subtitle": clean(f"size {params.size} · preset {params.method.preset} · seed {params.seed}"),
        "tiles": headline.tiles(results, params),
        "shows": shows,
        "lacks": lacks,
        "missing": [clean(m) for m in results.missing],
        "problems": [clean(p) for p in results.problems],
        "sections": _sections(results, params, root),
    }


def _sections(results: Results, params: Params, root: Path) -> list[Section]:
    return [
        world(results, params),
        data(results),
        scores(results, params),
        bench(results, params),
        dynamics(results, params),
        controls(results, params),
        gap(results, params),
        truth(results, params),
        scaling(results, params),
        training(results, params),
        episodes(results, params),
        part_rest.stops(results, params),
        part_rest.cost(results),
        part_rest.lineage(results, params, root),
    ]


def _render(name: str, page: dict[str, Any]) -> str:
    return templates().get_template(name).render(**page)


def _markdown(page: dict[str, Any]) -> str:
    """The same page as Markdown: cells cannot break their table, episodes cannot leave their fence."""
    env = templates().overlay(autoescape=False)
    env.filters = {**env.filters, "cell": _cell, "fenced": _fenced}
    text = env.get_template("report.md.jinja").render(**page)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _cell(text: Any) -> str:
    """Text that stays one inert table cell (or line) in Markdown."""
    flat = re.sub(r"\s+", " ", clean(text))
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", flat).replace("\\<", "&lt;").replace("\\>", "&gt;")


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks inside it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
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
