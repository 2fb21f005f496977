"""Small plots as inline SVG that follow the page's colours.

Flows in: series and intervals. Flows out: SVG text to be put into HTML unescaped.
Invariant: an SVG holds no script, no address outside itself and no identifier that a second plot on the page
could collide with; text from outside passes through matplotlib's own XML escaping. Colours are drawn as
stand-ins and swapped for CSS variables, so one file serves light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from envace.report.episode import clean

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
LETTERS = 56  # that fit below a small histogram
NARROWEST = 4  # bins there is room for, so that a lone bar stays a bar
CYCLE = (ACCENT, ACT, REHEARSE, WARN, SOFT, INK)  # of lines that stand for nothing in particular


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    label: str
    color: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]  # [len(xs)]
    spans: tuple[tuple[float, float], ...] = ()  # [len(xs)] interval of each point, or none at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A point with an interval, and marks to compare it with."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    color: str = ACT
    marks: dict[str, float] = field(default_factory=dict)  # {"do nothing": 0.0}


def curves(
    name: str, title: str, series: Sequence[Series], *, xlabel: str = "step", wide: bool = False
) -> str:
    """One chart: a line a series, small unless `wide`. Empty text when there is nothing to draw."""
    series = [s for s in series if s.xs]
    if not series:
        return ""
    figure, axes = _figure(*((7.2, 2.9) if wide else (3.5, 2.15)))
    for s in series:
        _line(axes, s)
    axes.set_title(_label(title), fontsize=10, loc="left", color=INK, pad=8)
    axes.set_xlabel(_label(xlabel), fontsize=8, color=SOFT)
    _whole_steps(axes, series)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="best", handlelength=1.2)
    return _svg(figure, name, f"{title}: " + ", ".join(s.label for s in series))


def _line(axes: Any, s: Series) -> None:
    marker = "o" if len(s.xs) <= 30 else None
    axes.plot(
        s.xs,
        s.ys,
        color=s.color,
        lw=1.8,
        marker=marker,
        ms=3.5,
        label=_label(s.label),
        solid_capstyle="round",
    )
    for x, (low, high) in zip(s.xs, s.spans):
        axes.plot([x, x], [low, high], color=s.color, lw=3, alpha=0.35, solid_capstyle="round")


def intervals(name: str, bars: Sequence[Bar], *, xlabel: str, zero: bool = False) -> str:
    """Points with their intervals, one a line, top to bottom; `zero` draws the line of no difference."""
    if not bars:
        return ""
    figure, axes = _figure(7.2, 0.62 + 0.42 * len(bars))
    marks = sorted({(k, v) for b in bars for k, v in b.marks.items()}, key=lambda m: m[1])
    for i, (mark, value) in enumerate(marks):
        axes.axvline(value, color=SOFT, lw=1, ls=(0, (2, 2 + i)), label=_label(f"{mark} {value:.2f}"))
    for y, bar in enumerate(bars):
        low, high = (bar.value if edge is None else edge for edge in (bar.low, bar.high))
        axes.plot([low, high], [y, y], color=bar.color, lw=3, alpha=0.45, solid_capstyle="round")
        axes.plot([bar.value], [y], "o", color=bar.color, ms=7)
        axes.annotate(
            f"{bar.value:.3f}",
            (max(high, bar.value), y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=INK,
        )
    axes.set_yticks(range(len(bars)), [_label(b.label) for b in bars], fontsize=9, color=INK)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    _room(axes, bars, marks, zero)
    axes.set_xlabel(_label(xlabel), fontsize=8, color=SOFT)
    if marks:
        axes.legend(
            frameon=False,
            fontsize=8,
            labelcolor=SOFT,
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=len(marks),
        )
    return _svg(figure, name, f"{xlabel}: " + ", ".join(f"{b.label} {b.value:.3f}" for b in bars))


def histogram(
    name: str, title: str, bins: Sequence[tuple[str, int]], *, ylabel: str, edges: Sequence[str] = ()
) -> str:
    """Bars side by side, each (label, count); `edges`, where given, are written between them instead of the
    labels."""
    if not bins:
        return ""
    figure, axes = _figure(3.5, 2.15)
    axes.bar(range(len(bins)), [n for _, n in bins], width=0.94, color=ACCENT)
    axes.grid(False, axis="x")
    texts = edges or [label for label, _ in bins]
    start = -0.5 if edges else 0.0
    every = -(-len(texts) * (max(map(len, texts)) + 1) // LETTERS)  # leave some out where all would overlap
    axes.set_xticks([start + k for k in range(0, len(texts), every)], [_label(t) for t in texts[::every]])
    axes.set_xlim(-0.6, max(len(bins), NARROWEST) - 0.4)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(_label(title), fontsize=10, loc="left", color=INK, pad=8)
    axes.set_ylabel(_label(ylabel), fontsize=8, color=SOFT)
    _whole_counts(axes)
    return _svg(figure, name, f"{title}: " + ", ".join(f"{label}: {n}" for label, n in bins))


def _whole_counts(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))


def _room(axes: Any, bars: Sequence[Bar], marks: Sequence[tuple[str, float]], zero: bool) -> None:
    """Limits that leave room for the numbers written beside the points."""
    edges = (
        [v for b in bars for v in (b.value, b.low, b.high) if v is not None] + [v for _, v in marks] + [0.0]
    )
    low, high = min(edges), max(edges)
    span = max(high - low, 0.05)
    axes.set_xlim(low - 0.04 * span, high + 0.16 * span)
    if zero:
        axes.axvline(0, color=INK, lw=1)


def _whole_steps(axes: Any, series: Sequence[Series]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    ys = [y for s in series for y in s.ys]
    if max(ys) - min(ys) < 1e-9:  # a flat line gets a frame of its own size instead of one of rounding noise
        pad = max(abs(ys[0]) * 0.1, 0.1)
        axes.set_ylim(ys[0] - pad if not 0 <= ys[0] < pad else -0.04 * pad, ys[0] + pad)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.grid(True, color=LINE, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("bottom",))
        spine.set_color(LINE)
    return figure, axes


def _label(text: str) -> str:
    return clean(text).replace("\n", " ").replace("$", r"\$")  # a dollar sign would start a formula


def _svg(figure: Any, name: str, alt: str) -> str:
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(
            out,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return _embed(out.getvalue(), re.sub(r"[^A-Za-z0-9_-]", "-", name), alt)


def _embed(svg: str, name: str, alt: str) -> str:
    """A stand-alone SVG document -> an element for this page."""
    from html import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", svg, flags=re.S
    )
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg, count=2)
    svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\1{name}-", svg)
    svg = re.sub(r" ?font-family: '[^;\"]*;|(?<=px) '[^;\"]*(?=[;\"])", "", svg)  # the page's font serves
    for stand_in, css in STAND_IN.items():
        svg = svg.replace(stand_in, css)
    return svg.replace("<svg", f'<svg class="plot" role="img" aria-label="{escape(clean(alt))}"', 1).strip()
