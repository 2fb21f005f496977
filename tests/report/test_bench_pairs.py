"""Policies held against each other on an upstream benchmark: what is compared, and what never is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_samples import LOST, tau2
from bench_shown import FAIR, GOOD, pair, row, shown, three

from envace.bench.tau2.tasks import AVERAGED


def test_policies_of_one_setup_are_compared_in_points_of_the_headline(tmp_path: Path) -> None:
    first, second = tau2(tmp_path, "start", FAIR), tau2(tmp_path, "envace-1", GOOD)
    found = pair(shown(tmp_path), "tau2", "macro reward")
    macro = [next(s.score for s in scores if s.subset == "macro") for scores in (first, second)]
    assert found["comparison"] == "envace-1 \u2212 start" and found["tasks"] == "6"
    assert found["difference"] == f"{100 * (macro[1] - macro[0]):+.1f}" == "+50.0"


def test_the_sign_of_a_difference_is_the_headlines_not_that_of_the_raw_mean(tmp_path: Path) -> None:
    tau2(tmp_path, "start", three([1.0] * 2, [1.0] * 2, [1.0] * 2 + [0.0] * 8))
    tau2(tmp_path, "envace-1", three([0.0] * 2, [1.0] * 2, [1.0] * 10))
    text = shown(tmp_path)  # of 14 tasks 12 against 6, yet macro 66.7 against 73.3
    assert row(text, "Main results", "start")["τ²-Bench"].startswith("73.3")
    assert row(text, "Main results", "envace-1")["τ²-Bench"].startswith("66.7")
    assert pair(text, "tau2", "macro reward")["difference"] == "-6.7"


CHANGES = {
    "judge": {"judge": "another"},
    "user": {"user": "another"},
    "thinking": {"thinking": True},
    "harness": {"revision": "2026-08-18"},
    "data": {"words": "rewritten"},
}


@pytest.mark.parametrize("named", CHANGES)
def test_runs_that_differ_in_one_thing_are_never_compared_nor_mixed(tmp_path: Path, named: str) -> None:
    first, _ = tau2(tmp_path, "start", FAIR), tau2(tmp_path, "envace-1", GOOD, **CHANGES[named])
    assert first[0].subset == "airline", "graded by no judge: the first record alone would not tell"
    text = shown(tmp_path)
    found = pair(text, "tau2", "macro reward")
    assert found["reading"] == f"not compared: {named} not the same" and found["difference"] == "–"
    assert "+50.0" not in text.words
    main = [row(text, "Main results", p)["τ²-Bench"] for p in ("start", "envace-1")]
    assert main[0].endswith("{a}") and main[1].endswith("{b}") and "tau2 {a}: harness" in text.words
    (figure,) = text.section.plots
    assert ("start" in figure) != ("envace-1" in figure), "one setup an axis"


def test_tau2_106_and_gorilla_1001_two_versions_of_a_harness_stand_apart_from_each_other_and_from_print(
    tmp_path: Path,
) -> None:
    """Published tables and result files of other versions were read as one and did not agree."""
    tau2(tmp_path, "start", FAIR, revision="v1.0.1")
    tau2(tmp_path, "qwen3-8b", FAIR, revision="2026-08-18")
    text = shown(tmp_path)
    assert "not compared: harness not the same" in text.words
    assert "(v1.0.1)" in text.words and "(2026-08-18)" in text.words
    assert row(text, "Main results", "Qwen3-8B", "paper")["τ²-Bench"] == "30.0"


def test_a_judge_matters_only_where_it_grades(tmp_path: Path) -> None:
    tau2(tmp_path, "start", {"airline": [1.0, 0.0]}, judge="one")
    tau2(tmp_path, "envace-1", {"airline": [1.0, 1.0]}, judge="another")
    assert pair(shown(tmp_path), "tau2", "airline reward")["difference"] == "+50.0"


def test_scores_that_do_not_say_who_played_are_comparable_with_nothing(tmp_path: Path) -> None:
    tau2(tmp_path, "start", FAIR)
    tau2(tmp_path, "envace-1", GOOD)
    file = tmp_path / "results/bench/start-tau2/scores.json"
    data = json.loads(file.read_text())
    for s in data["scores"]:
        del s["versions"]["user"]
    file.write_text(json.dumps(data))
    assert "not compared: user not the same" in shown(tmp_path).words


def test_a_result_that_holds_two_setups_is_compared_with_nothing(tmp_path: Path) -> None:
    tau2(tmp_path, "start", FAIR)
    tau2(tmp_path, "envace-1", GOOD)
    file = tmp_path / "results/bench/start-tau2/scores.json"
    data = json.loads(file.read_text())
    next(s for s in data["scores"] if (s["subset"], s["metric"]) == ("retail", "pass^1"))["harness"] = (
        "another"
    )
    file.write_text(json.dumps(data))
    assert "not compared: two setups in one run" in shown(tmp_path).words


def test_what_one_side_withholds_is_not_compared(tmp_path: Path) -> None:
    tau2(tmp_path, "start", FAIR | {"retail": [1.0, LOST], "airline": [LOST, 1.0], "telecom": [LOST, 0.0]})
    tau2(tmp_path, "envace-1", GOOD)
    assert pair(shown(tmp_path), "tau2")["reading"] == "not compared: no score is given for both"


def scattered(rate: float, tasks: int, trials: int, seed: int) -> list[Any]:
    """Exactly this share of successes, scattered over tasks and trials."""
    flat = np.zeros(tasks * trials)
    flat[: round(rate * flat.size)] = 1.0
    made = np.random.default_rng(seed).permutation(flat).reshape(tasks, trials)
    return [tuple(map(float, t)) for t in made]


def test_tau2_51_two_assessments_of_one_model_differ_and_the_report_calls_it_noise(tmp_path: Path) -> None:
    """Four trials of airline's 50 tasks gave 31.0 % once and 23.5 % the next time."""
    tau2(tmp_path, "start", {"airline": scattered(0.235, 50, 4, 1)}, trials=4)
    tau2(tmp_path, "envace-1", {"airline": scattered(0.31, 50, 4, 2)}, trials=4)
    found = pair(shown(tmp_path), "tau2", "airline reward")
    assert (found["difference"], found["reading"]) == ("+7.5", "inside noise")


def test_tau2_540_eight_points_between_single_runs_are_noise_and_said_to_be_single(tmp_path: Path) -> None:
    """Published runs repeat only to within 7 to 11 points."""
    tau2(tmp_path, "start", {"airline": scattered(0.40, 50, 1, 1)})
    tau2(tmp_path, "envace-1", {"airline": scattered(0.48, 50, 1, 2)})
    text = shown(tmp_path)
    found = pair(text, "tau2", "airline reward")
    assert (found["difference"], found["reading"]) == ("+8.0", "inside noise, single trial")
    own = row(text, "τ²-Bench by domain", "start")
    assert own["trials"] == "single trial" and own["airline"].endswith("(50)")


def test_the_three_domains_are_those_of_the_papers_average() -> None:
    assert tuple(FAIR) == AVERAGED
