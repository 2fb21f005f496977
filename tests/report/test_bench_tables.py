"""Upstream benchmarks in the report: what the tables show, and what they say where there is no number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench_samples import LOST, bfcl, finmcp, tau2, vita
from bench_shown import FAIR, GOOD, bench_params, pair, row, rows, shown, three

from envace.bench.bfcl.tasks import ALL
from envace.bench.vita.tasks import DOMAINS
from envace.report.report import build


def test_our_rows_stand_beside_the_papers_in_one_scale_with_tasks_trials_and_interval(tmp_path: Path) -> None:
    tau2(tmp_path, "start", FAIR)
    tau2(tmp_path, "qwen3-8b", three([(1.0, 0.0)] * 2, [(1.0, 1.0)] * 2, [(0.0, 0.0)] * 2), trials=2)
    text = shown(tmp_path)
    assert row(text, "Main results", "start", "this run")["τ²-Bench"] == "33.3 [0.0, 66.7] (6, single trial)"
    assert row(text, "Main results", "qwen3-8b")["τ²-Bench"] == "50.0 [50.0, 50.0] (6 × 2)"
    assert row(text, "Main results", "EnvACE-8B", "paper")["τ²-Bench"] == "36.7"
    names = [r[0] for r in rows(text, "Main results")]
    assert names[names.index("qwen3-8b") + 1] == "Qwen3-8B", "the paper's row of the same model stands next"
    assert "46.04" not in text.words and "BFCL" not in text.words, "only what was run"


def test_domains_and_their_average_are_columns_and_a_withheld_one_says_what_it_lacks(tmp_path: Path) -> None:
    tau2(tmp_path, "start", {"airline": [1.0, 0.0], "retail": [1.0, 1.0]})
    text = shown(tmp_path)
    parts = row(text, "τ²-Bench by domain", "start")
    assert parts["airline"].startswith("50.0 [") and parts["retail"].startswith("100.0 [")
    assert parts["telecom"] == "not run" and parts["average"] == "withheld: telecom: not asked for"
    assert row(text, "Main results", "start")["τ²-Bench"] == "withheld: telecom: not asked for"


def test_a_score_below_completeness_is_withheld_everywhere_and_says_how_much_is_lost(tmp_path: Path) -> None:
    tau2(tmp_path, "start", FAIR | {"retail": [1.0, LOST]})
    tau2(tmp_path, "envace-1", GOOD)
    text = shown(tmp_path)
    assert row(text, "τ²-Bench by domain", "start")["retail"] == "withheld: 1 of 2 samples have no score"
    assert row(text, "Main results", "start")["τ²-Bench"] == "withheld: retail: incomplete"
    every = [r for r in rows(text, "Every score")[1:] if r[1:3] == ["start", "retail"]]
    assert {r[5] for r in every} == {"withheld"} and {r[10] for r in every} == {"1 infrastructure"}


def test_what_doing_nothing_scores_is_a_row_beside_the_others(tmp_path: Path) -> None:
    vita(tmp_path, "start", {d: [0.0, 1.0] for d in DOMAINS})
    vita(tmp_path, "envace-1", {"delivery": [0.0, 1.0]})
    floor = row(shown(tmp_path, "vita"), "VitaBench by domain", "an agent that does nothing", "floor")
    assert floor["delivery"] == floor["cross"] == floor["average"] == "0.0"


def test_a_subset_of_no_average_has_a_column_of_its_own(tmp_path: Path) -> None:
    tau2(tmp_path, "start", {"mock": [1.0, 0.0]})
    text = shown(tmp_path)
    own = row(text, "τ²-Bench by domain", "start")
    assert own["mock"].startswith("50.0 [") and own["average"] == own["airline"] == "not run"


def test_a_policy_without_a_benchmark_that_another_has_is_named_so(tmp_path: Path) -> None:
    tau2(tmp_path, "start", FAIR)
    bfcl(tmp_path, "envace-1", {"simple_python": [1.0, 0.0]}, {"web_search_base": "needs the open web"})
    text = shown(tmp_path, "bfcl", "tau2")
    assert row(text, "Main results", "start")["BFCL-v4"] == "not run"
    assert row(text, "Main results", "envace-1")["BFCL-v4"].startswith("withheld: simple_java: not asked for")
    assert row(text, "Main results", "ScaleEnv-8B")["BFCL-v4"] == "not printed"
    assert "overall" not in rows(text, "Main results")[0]


def test_the_overall_is_the_plain_mean_of_the_three_with_an_interval_over_their_tasks(tmp_path: Path) -> None:
    full = {c: [1.0, 0.0] if c.startswith("memory") else [1.0, 1.0] for c in ALL}
    bfcl(tmp_path, "start", full)
    tau2(tmp_path, "start", FAIR)
    vita(tmp_path, "start", {d: [0.0, 0.0] for d in DOMAINS})
    bfcl(tmp_path, "envace-1", full)
    text = shown(tmp_path, "bfcl", "tau2", "vita")
    own = row(text, "Main results", "start")
    assert own["BFCL-v4"].startswith("90.00 [") and own["VitaBench"].startswith("0.0 [0.0, 0.0]")
    value, low, high = map(float, re.findall(r"[\d.]+", own["overall"]))
    assert value == pytest.approx((90 + 100 / 3 + 0) / 3, abs=0.006) and low < value < high
    assert row(text, "Main results", "envace-1")["overall"] == "withheld: τ²-Bench"
    assert row(text, "Main results", "EnvACE-8B", "paper")["overall"] == "32.91"
    groups = row(text, "BFCL-v4 by group", "start")
    assert groups["memory"].startswith("50.00 [") and groups["overall"].startswith("90.00 [")


def test_the_finmcp_table_has_the_papers_columns_micro_macro_and_its_values(tmp_path: Path) -> None:
    finmcp(tmp_path, "start", [("single", 4, 2, 0), ("multi", 1, 1, 2), ("multi_turn", 1, 1, 0)])
    text = shown(tmp_path, "finmcp")
    own = row(text, "FinMCP-Bench", "start", "this run", "all")
    assert (
        own["TP"].startswith("66.67 [")
        and own["TR"].startswith("66.67 [")
        and own["EMR"].startswith("33.33 [")
    )
    assert own["macro TP"].startswith("77.78 [") and own["macro TR"].startswith("83.33 [")
    assert own["tasks × trials"] == "3, single trial"
    assert row(text, "FinMCP-Bench", "start", "this run", "single")["TR"] == "50.00"
    printed = row(text, "FinMCP-Bench", "EnvACE-8B", "paper")
    assert (printed["TP"], printed["TR"], printed["TF1"], printed["EMR"]) == (
        "54.04",
        "41.23",
        "46.78",
        "not printed",
    )


def test_all_of_finmcp_is_withheld_when_a_kind_of_conversation_was_not_run(tmp_path: Path) -> None:
    played = [("single", 4, 2, 0), ("multi", 1, 1, 2)]
    finmcp(tmp_path, "start", played)
    finmcp(tmp_path, "envace-1", [("single", 4, 4, 0), ("multi", 1, 1, 2)])
    text = shown(tmp_path, "finmcp")
    own = row(text, "FinMCP-Bench", "start", "this run", "all")
    assert {own["TP"], own["macro TF1"]} == {"withheld: multi_turn: not asked for"}
    assert row(text, "FinMCP-Bench", "start", "this run", "multi_turn")["TP"] == "not run"
    assert pair(text, "finmcp", "single tf1")["difference"] == f"{100 * (1 - 2 / 3):+.1f}"
    assert pair(text, "finmcp", "multi tf1")["difference"] == "+0.0"


def test_details_stand_in_a_table_of_their_own_and_words_from_files_are_escaped(run: Path) -> None:
    rewards = {"simple_python": [1.0, 0.0], "web_search_no_snippet": [1.0, 0.0]}
    bfcl(run, "start", rewards, {"web_search_base": "<script>x</script>"})
    build(run, bench_params("bfcl"))
    for page in ("index.html", "report.md"):
        said = (run / "report" / page).read_text()
        assert "<script>x" not in said and said.count("&lt;script&gt;x") > 1
    text = shown(run, "bfcl")
    every = rows(text, "Every score")
    assert [r for r in every if r[2:5] == ["simple_python", "reward", "strict"]][0][9] == "do nothing 0.000"


def test_the_headline_of_a_run_of_one_subset_is_that_subset_under_its_own_name(run: Path) -> None:
    bfcl(run, "start", {"simple_python": [1.0, 0.0]})
    tau2(run, "start", FAIR)
    summary = build(run, bench_params("bfcl", "tau2"))
    assert summary["bench/bfcl.simple_python_start"] == 0.5 and "bench/bfcl_start" not in summary
    assert summary["bench/tau2_start"] == pytest.approx(1 / 3)


def test_a_benchmark_that_ran_is_not_said_to_be_absent(run: Path) -> None:
    tau2(run, "start", FAIR)
    build(run, bench_params("tau2"))
    page = (run / "report/report.md").read_text()
    assert "Not run: BFCL-v4, VitaBench, FinMCP-Bench." in page and "No public benchmark result" not in page


def test_without_a_benchmark_the_papers_numbers_are_not_shown(tmp_path: Path, report: Path) -> None:
    page = (report / "index.html").read_text()
    assert "36.7" not in page and "Upstream benchmarks" in page.split("Not in this run:")[1]
