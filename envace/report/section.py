"""What a section of the page is made of.

Flows in: text, tables, plots, fragments. Flows out: `Section`s that both templates print.
Invariant: plots and fragments are of this package's own making and escaped; everything else is plain text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from envace.report.episode import episode_html, episode_text
from envace.report.results import Results
from envace.report.table import Table
from envace.types import Episode

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
    points: tuple[str, ...] = ()  # one sentence each, below the lead
    plots: tuple[str, ...] = ()  # SVG
    wide: bool = False
    tables: tuple[tuple[str, Table], ...] = ()  # (caption, table)
    fragments: tuple[Fragment, ...] = ()


def captioned(*pairs: tuple[str, Table | None]) -> tuple[tuple[str, Table], ...]:
    """Those that have something to say."""
    return tuple((caption, t) for caption, t in pairs if t is not None)


def fragment(title: str, episode: Episode, results: Results, *, open: bool = True) -> Fragment:
    task = results.tasks.get(episode.task_id)
    return Fragment(
        title=title,
        html=episode_html(episode, task),
        text=episode_text(episode, task, color=False),
        open=open,
    )


def short(value: object, limit: int = 140) -> str:
    """One line of text or JSON, cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
