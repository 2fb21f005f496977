"""One table, the same for HTML and Markdown, and how its cells are written.

Flows in: values. Flows out: `Table`s of plain text cells; the templates escape them.
Invariant: a table with nothing to say is None, never an empty frame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envace.report.episode import clean
from envace.report.estimates import Estimate

DASH = "–"
MINUS = "\u2212"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # [len(columns)] each
    numeric: tuple[bool, ...]  # [len(columns)] aligned right
    note: str = ""


NUMBER = re.compile(
    r"([-+\u2212\d\[][^A-Za-z]*(e[-+]?\d+)?( (s|min|h))?|\u2013|single trial|withheld)\Z"
)  # as the formats below write them


def table(columns: tuple[str, ...], rows: list[tuple], *, note: str = "") -> Table | None:
    """None without rows; a column is numeric when each of its cells is."""
    if not rows:
        return None
    texts = tuple(tuple(clean(c) for c in row) for row in rows)
    numeric = tuple(all(NUMBER.match(c) for c in cells) for cells in zip(*texts))
    return Table(columns=columns, rows=texts, numeric=numeric, note=note)


def fixed(value: float | None, digits: int = 3) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+.3f}"


def between(e: Estimate | None, form: str = ".3f") -> str:
    if e is None or e.low is None or e.high is None:
        return DASH
    return f"[{e.low:{form}}, {e.high:{form}}]"


def trials(n: int) -> str:
    return {0: DASH, 1: "single trial"}.get(n, str(n))


def spread(value: float | None, low: float | None, high: float | None) -> str:
    """`0.590 [0.500, 0.680]`."""
    if value is None or low is None or high is None:
        return fixed(value)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def verdict(e: Estimate | None, words: tuple[str, str] = ("better", "worse")) -> str:
    """How to read a difference: one of the two words only when its interval excludes zero."""
    if e is None:
        return DASH
    if e.low is None:
        return "no interval"
    if not e.decided:
        return "inside noise"
    return words[0] if e.value > 0 else words[1]


def difference_cells(
    e: Estimate | None, words: tuple[str, str] = ("better", "worse")
) -> tuple[str, str, str]:
    """Difference, interval, reading."""
    return signed(e.value if e else None), between(e, "+.3f"), verdict(e, words)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}".replace(",", "\u202f")
