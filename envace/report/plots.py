"""Small plots as inline SVG that follow the page's colours.

Invariant: an SVG holds no script, no address outside itself and no identifier that a second plot on the page
could collide with; text from outside passes through matplotlib's own XML escaping. Colours are drawn as
stand-ins and swapped for CSS variables, so one file serves light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from envace.report.estimates import Estimate
from envace.report.table import clean

STAND_IN = {  # colour drawn -> what the page uses
    "#010101": "currentColor",
    "#020202": "var(--soft)",
    "#030303": "var(--line)",
    "#040404": "var(--act)",
    "#050505": "var(--rehearse)",
    "#060606": "var(--accent)",
    "#070707": "var(--warn)",
}
INK, SOFT, LINE, ACT, REHEARSE, ACCENT, WARN = STAND_IN
LETTERS = 56
"""That fit below a small histogram."""
CYCLE = (ACCENT, ACT, REHEARSE, WARN, SOFT, INK)
"""Of lines that stand for nothing in particular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    label: str
    color: str
    points: Sequence[tuple[float, Estimate | float]] = ()
    """(x, y), with the interval of an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A point with an interval, and marks to compare it with."""

    label: str
    at: Estimate
    color: str = ACT
    marks: dict[str, float] = field(default_factory=dict)
    """{"do nothing": 0.0}"""

    @property
    def edges(self) -> tuple[float, float]:
        return _edges(self.at)


def _edges(e: Estimate) -> tuple[float, float]:
    return (e.value if e.low is None else e.low), (e.value if e.high is None else e.high)


def curves(
    name: str, title: str, series: Sequence[Series], *, xlabel: str = "step", wide: bool = False
) -> str:
    """One chart: a line a series, small unless `wide`. Empty text when there is nothing to draw."""
    series = [s for s in series if s.points]
    if not series:
        return ""
    figure, axes = _figure(*((7.2, 2.9) if wide else (3.5, 2.15)), title)
    ys = []
    for s in series:
        own = [y.value if isinstance(y, Estimate) else y for _, y in s.points]
        mark = "o" if len(own) <= 30 else None
        axes.plot(
            [x for x, _ in s.points], own, color=s.color, lw=1.8, marker=mark, ms=3.5, label=_label(s.label)
        )
        for x, y in s.points:
            if isinstance(y, Estimate):
                axes.plot([x, x], _edges(y), color=s.color, lw=3, alpha=0.35)
        ys += own
    axes.set_xlabel(_label(xlabel), fontsize=8, color=SOFT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    if max(ys) - min(ys) < 1e-9:  # a flat line gets a frame of its own size instead of one of rounding noise
        pad = max(abs(ys[0]) * 0.1, 0.1)
        axes.set_ylim(ys[0] - pad if not 0 <= ys[0] < pad else -0.04 * pad, ys[0] + pad)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="best", handlelength=1.2)
    return _svg(figure, name, f"{title}: " + ", ".join(s.label for s in series))


def intervals(name: str, bars: Sequence[Bar], *, xlabel: str, zero: bool = False) -> str:
    """Points with their intervals, one a line, top to bottom; `zero` draws the line of no difference."""
    if not bars:
        return ""
    figure, axes = _figure(7.2, 0.62 + 0.42 * len(bars))
    marks = sorted({m for b in bars for m in b.marks.items()}, key=lambda m: m[1])
    for i, (mark, value) in enumerate(marks):
        axes.axvline(value, color=SOFT, lw=1, ls=(0, (2, 2 + i)), label=_label(f"{mark} {value:.2f}"))
    for y, bar in enumerate(bars):
        axes.plot(bar.edges, [y, y], color=bar.color, lw=3, alpha=0.45)
        axes.plot([bar.at.value], [y], "o", color=bar.color, ms=7)
        text = axes.annotate(f"{bar.at.value:.3f}", (max(bar.edges), y), (8, 0), textcoords="offset points")
        text.set(va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(bars)), [_label(b.label) for b in bars], fontsize=9, color=INK)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    drawn = [0.0, *(v for b in bars for v in (*b.edges, b.at.value)), *(v for _, v in marks)]
    span = max(max(drawn) - min(drawn), 0.05)
    axes.set_xlim(
        min(drawn) - 0.04 * span, max(drawn) + 0.16 * span
    )  # room for the numbers beside the points
    if zero:
        axes.axvline(0, color=INK, lw=1)
    axes.set_xlabel(_label(xlabel), fontsize=8, color=SOFT)
    if marks:
        legend = axes.legend(frameon=False, fontsize=8, labelcolor=SOFT, loc="lower right", ncols=len(marks))
        legend.set_bbox_to_anchor((1, 1))
    return _svg(figure, name, f"{xlabel}: " + ", ".join(f"{b.label} {b.at.value:.3f}" for b in bars))


def histogram(name: str, title: str, bins: Sequence[tuple[str, int]], *, ylabel: str) -> str:
    """Bars side by side, each (label, count)."""
    if not bins:
        return ""
    figure, axes = _figure(3.5, 2.15, title)
    axes.bar(range(len(bins)), [n for _, n in bins], width=0.94, color=ACCENT)
    axes.grid(False, axis="x")
    texts = [label for label, _ in bins]
    every = -(-len(texts) * (max(map(len, texts)) + 1) // LETTERS)  # leave some out where all would overlap
    axes.set_xticks(range(0, len(texts), every), [_label(t) for t in texts[::every]], fontsize=7)
    axes.set_xlim(-0.6, max(len(bins), 4) - 0.4)  # a lone bar stays a bar
    axes.set_ylabel(_label(ylabel), fontsize=8, color=SOFT)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return _svg(figure, name, f"{title}: " + ", ".join(f"{label}: {n}" for label, n in bins))


def _figure(width: float, height: float, title: str = "") -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")  # no pyplot: no global state, no display
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.grid(True, color=LINE, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(LINE)
    axes.set_title(_label(title), fontsize=10, loc="left", color=INK, pad=8)
    return figure, axes


def _label(text: str) -> str:
    return clean(text).replace("\n", " ").replace("$", r"\$")  # a dollar sign would start a formula


def _svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an element of this page: its own identifiers, the page's colours and font."""
    out, name = io.StringIO(), re.sub(r"[^A-Za-z0-9_-]", "-", name)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", svg, flags=re.S
    )
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg, count=2)
    svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\1{name}-", svg)
    svg = re.sub(r" ?font-family: '[^;\"]*;|(?<=px) '[^;\"]*(?=[;\"])", "", svg)
    for stand_in, css in STAND_IN.items():
        svg = svg.replace(stand_in, css)
    return svg.replace("<svg", f'<svg class="plot" role="img" aria-label="{escape(clean(alt))}"', 1).strip()
