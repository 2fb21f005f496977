"""Ratios of all benchmarks on one page: read from their files, held against the bars, shown as a table."""

import importlib
import json
from pathlib import Path

import pytest

from benchmarks import bars
from envace.errors import DataError


def line(**more):
    return bars.Line(**{"name": "n", "benchmark": "b", "peer": "theirs", **more})


def read(tmp_path, results, *lines, well=True):
    (tmp_path / "b.json").write_text(json.dumps({"results": results}))
    return bars.measured(tmp_path, {"b": well}, lines)


def test_a_ratio_is_theirs_over_ours_and_the_worst_of_several_counts(tmp_path):
    results = [{"median_ms": {"theirs": t, "envace": 2.0}} for t in (9.0, 5.0)]
    [met, missed, none] = read(tmp_path, results, line(bar=2.5), line(bar=2.6), line())
    assert (met.theirs, met.ours, met.ratio, met.met) == (5.0, 2.0, 2.5, True)
    assert (missed.met, none.met) == (False, None)


def test_of_rates_more_is_better(tmp_path):
    results = [{"rate": {"theirs": 10.0, "envace": 40.0}}]
    [found] = read(tmp_path, results, line(amounts="rate", unit="rows/s"))
    assert found.ratio == 4.0


def test_another_size_a_missing_peer_and_a_failed_run_are_not_measured(tmp_path):
    results = [
        {"rows": 10, "median_ms": {"envace": 1.0}},
        {"rows": 20, "median_ms": {"theirs": 1.0, "envace": 1.0}},
    ]
    found = read(
        tmp_path, results, line(where={"rows": 10}, bar=1.0), line(where={"rows": 30}), line(benchmark="c")
    )
    assert [(f.ratio, f.met) for f in found] == [(None, None)] * 2  # c was not in the run
    assert read(tmp_path, results, line(where={"rows": 20}), well=False)[0].ratio is None
    assert read(tmp_path, results, line(where={"rows": 20}))[0].ratio == 1.0


def test_the_table_shows_what_was_measured_and_every_bar(tmp_path):
    results = [{"median_ms": {"theirs": 1234.5, "envace": 2.0}}]
    found = read(tmp_path, results, line(bar=3.0), line(bar=1e9), line(peer="x", bar=2.0), line(peer="y"))
    assert bars.table(found).splitlines()[2:] == [
        "| n | theirs | 1,234 ms | 2 ms | 617 | 3 | met |",
        "| n | theirs | 1,234 ms | 2 ms | 617 | 1e+09 | **missed** |",
        "| n | x | not measured | | | 2 | |",
    ]


def test_a_table_takes_the_place_of_the_last_one_in_a_document(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{bars.BEGIN}\n| old |\n{bars.END}\nafter\n")
    bars.into(page, "| new |")
    bars.into(page, "| newer |")
    assert page.read_text() == f"before\n{bars.BEGIN}\n| newer |\n{bars.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(DataError, match="no place for the table"):
        bars.into(page, "| new |")


def test_the_page_holds_every_bar_and_a_place_for_the_next_run():
    page = (Path(bars.__file__).parents[1] / "docs/speed.md").read_text()
    table = page.partition(bars.BEGIN)[2].partition(bars.END)[0]
    for entry in bars.LINES:
        if entry.bar is not None:
            assert f"| {entry.name} | {entry.peer} |" in table


def test_every_line_names_a_benchmark_and_entries_that_it_times():
    for entry in bars.LINES:
        module = importlib.import_module(f"benchmarks.{entry.benchmark}")
        names = {value for value in vars(module).values() if isinstance(value, str)}
        if entry.benchmark != "staging":  # whose entries are named where they are made
            assert {entry.peer, entry.ours} <= names, entry
        assert f'"{entry.amounts}"' in Path(module.__file__).read_text(), entry


def test_the_bars_of_the_project_are_these():
    stated = {(b.benchmark, b.peer): b.bar for b in bars.LINES if b.bar is not None}
    assert stated == {
        ("advantage", "verl loop"): 3.0, ("prompts", "render anew"): 20.0, ("prompts", "verl's builder"): 1.0,
        ("merging", "one row a generation"): 4.0, ("scheduling", "lock-step"): 2.0,
        ("scheduling", "verl's agent loops"): 0.99, ("judge", "httpx"): 3.0,
    }  # fmt: skip
