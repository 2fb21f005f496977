"""Cells, tables and sections: what the HTML page and the Markdown report print alike.

Invariant: cells are plain text that the templates escape; a table with nothing to say is None, never an empty
frame."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from envace.report.estimates import Estimate
from envace.types import JSON

DASH, MINUS = "–", "\u2212"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 without tab and newline, C1, direction overrides, lone surrogates."""
NUMBER = re.compile(r"([-+\u2212\d\[][^A-Za-z]*(e[-+]?\d+)?( (s|min|h))?|\u2013|single trial|withheld)\Z")
"""A cell that is aligned right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """[len(columns)] cells each."""
    numeric: tuple[bool, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """An episode, in both forms."""

    title: str
    html: str
    """Escaped by the episode view."""
    text: str
    open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page; one without plots, tables and fragments is left out and named as absent."""

    id: str
    title: str
    lead: str = ""
    plots: tuple[str, ...] = ()
    """SVG, made and escaped by `envace.report.plots`."""
    wide: bool = False
    tables: tuple[tuple[str, Table], ...] = ()
    """(caption, table)"""
    fragments: tuple[Fragment, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.plots or self.tables or self.fragments)


def table(columns: str, rows: Sequence[Sequence[str]], note: str = "") -> Table | None:
    """`table("policy | score", [("start", "0.480")])`; None without rows.

    A column is numeric when each of its cells is."""
    if not rows:
        return None
    texts = tuple(tuple(clean(c) for c in row) for row in rows)
    numeric = tuple(all(NUMBER.match(c) for c in cells) for cells in zip(*texts, strict=True))
    return Table(columns=tuple(columns.split(" | ")), rows=texts, numeric=numeric, note=note)


def captioned(*pairs: tuple[str, Table | None]) -> tuple[tuple[str, Table], ...]:
    """Those that have something to say."""
    return tuple((caption, t) for caption, t in pairs if t is not None)


def clean(text: object) -> str:
    """Text without characters that act on a terminal or a reader instead of being read."""
    return UNSAFE.sub("\ufffd", str(text).replace("\r\n", "\n"))


def short(value: JSON, limit: int = 140) -> str:
    """One line of text or JSON, cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- numbers ------------------------------------------------------------------------------------------------


def fixed(value: float | None) -> str:
    return DASH if value is None else f"{value:.3f}"


def between(e: Estimate | None, form: str = ".3f") -> str:
    if e is None or e.low is None or e.high is None:
        return DASH
    return f"[{e.low:{form}}, {e.high:{form}}]"


def spread(e: Estimate | None) -> str:
    """`0.590 [0.500, 0.680]`."""
    if e is None:
        return DASH
    return fixed(e.value) if e.low is None else f"{e.value:.3f} {between(e)}"


def reading(e: Estimate | None, words: tuple[str, str] = ("better", "worse")) -> str:
    """How to read a difference: one of the two words only when its interval excludes zero."""
    if e is None:
        return DASH
    if e.low is None:
        return "no interval"
    return words[e.value <= 0] if e.decided else "inside noise"


def difference_cells(
    e: Estimate | None, words: tuple[str, str] = ("better", "worse")
) -> tuple[str, str, str]:
    """Difference, interval, reading."""
    return DASH if e is None else f"{e.value:+.3f}", between(e, "+.3f"), reading(e, words)


def trials(n: int) -> str:
    return {0: DASH, 1: "single trial"}.get(n, str(n))


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}".replace(",", "\u202f")


def lost(agent: int, infra: int, missing: int) -> str:
    """Samples without a score, by why."""
    parts = ((agent, "agent failed (0)"), (infra, "infrastructure"), (missing, "missing"))
    return ", ".join(f"{n} {what}" for n, what in parts if n) or "0"
