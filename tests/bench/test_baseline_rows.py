"""The size that measures the paper's rows: complete, and refused until its commits are filled in."""

from pathlib import Path

import pytest

from envace.config import load
from envace.config.check import PLACEHOLDER
from envace.config.size import write_size
from envace.errors import ParamsError
from envace.params import load_checked
from envace.policy import hub
from envace.report import paper

SIZES = Path(__file__).resolve().parents[2] / "sizes"


def test_every_printed_row_is_a_baseline_or_is_said_to_have_no_weights():
    bench = load(SIZES / "paper-table.yaml").bench
    printed = {*paper.MAIN, *paper.FINMCP}
    lacking = {n for n in printed if not any(paper.same_model(row, n) for row in bench.baselines)}
    assert lacking == {"Simulator-8B", "ScaleEnv-8B"} and set(bench.policies) == set(bench.baselines)
    assert all(f"{name}" in (SIZES / "paper-table.yaml").read_text() for name in lacking)
    assert bench.baselines["envace-8b"].context == 32768 and "finmcp" in bench.benchmarks


@pytest.mark.parametrize("size", ["paper", "paper-table"])
def test_a_judge_may_write_as_much_as_docs_evaluation_asks_for(size):
    assert load(SIZES / f"{size}.yaml").bench.judge.max_tokens >= 8192


def test_placeholders_are_refused_until_they_are_filled(tmp_path, monkeypatch):
    path = tmp_path / "params.yaml"
    write_size("paper-table", path, SIZES)
    with pytest.raises(ParamsError, match="qwen3-1.7b.revision is a placeholder .9 of its kind.: .*hub fill"):
        load_checked(path)
    monkeypatch.setattr(hub, "resolve", lambda repo: f"{len(repo):040x}")
    assert hub.fill(path) == 9
    filled = load_checked(path).bench.baselines
    assert {row.revision for row in filled.values()}.isdisjoint({PLACEHOLDER})
    assert filled["awm-8b"].revision == f"{len('Snowflake/Arctic-AWM-8B'):040x}"


def test_the_papers_placeholder_commit_is_refused(tmp_path):
    write_size("paper", tmp_path / "params.yaml", SIZES)
    with pytest.raises(ParamsError, match="data.revision is a placeholder: put the commit of namezz/Check"):
        load_checked(tmp_path / "params.yaml")
