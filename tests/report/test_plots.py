"""Plots as inline SVG.

Run: pytest tests/report/test_plots.py
"""

import re

from envace.report import plots
from envace.report.estimates import Estimate


def test_colours_are_the_pages_and_hostile_labels_are_escaped() -> None:
    line = plots.Series(label="</text><script>x</script> $a_b$", color=plots.ACT, points=[(1, 0.0), (2, 1.0)])
    svg = plots.curves("a b", "reward", [line, line])
    assert "var(--act)" in svg and not any(code in svg for code in plots.STAND_IN)
    assert "<script" not in svg and "&lt;script&gt;" in svg
    assert svg.startswith("<svg") and "http" not in svg and "font-family" not in svg


def test_two_plots_share_no_id() -> None:
    line = plots.Series(label="act", color=plots.ACT, points=[(1, 0.5)])
    ids = [i for name in ("a", "b") for i in re.findall(r'\sid="([^"]+)"', plots.curves(name, "t", [line]))]
    assert ids and len(ids) == len(set(ids))


def test_nothing_to_draw_is_no_plot() -> None:
    assert plots.curves("a", "t", [plots.Series(label="act", color=plots.ACT)]) == ""
    assert plots.intervals("a", [], xlabel="x") == ""


def test_an_interval_without_ends_is_a_point() -> None:
    svg = plots.intervals(
        "a", [plots.Bar(label="start", at=Estimate(value=0.25), marks={"random": 0.02})], xlabel="success"
    )
    assert ">0.250<" in svg and ">random 0.02<" in svg


def test_a_histogram_escapes_its_words_and_is_nothing_without_bins() -> None:
    svg = plots.histogram("h", "<b>&", [("$1", 2), ("<i>", 0)], ylabel="rows")
    assert "<b>" not in svg and "<i>" not in svg and svg.startswith('<svg class="plot"')
    assert plots.histogram("h", "t", [], ylabel="rows") == ""
