"""FinMCP-Bench's numbers, computed by hand beside the code."""

from __future__ import annotations

import pytest

from envace.bench.finmcp.scores import counts, estimate, nothing


def test_counts_of_one_conversation_by_hand():
    made = counts([["a"], ["b", "c"], ["a"]], [["a", "c"], ["b"], ["d"]])
    # gold a b c a, predicted a c b d: three names in both, one predicted in vain, one missed
    assert (made["tp"], made["fp"], made["fn"]) == (3, 1, 1)
    assert made["precision"] == made["recall"] == made["f1"] == 0.75
    assert made["emr"] == made["emr_described"] == 0


@pytest.mark.parametrize(
    ("gold", "predicted", "coded", "described"),
    [
        ([["a"], ["b"]], [["a"], ["b"]], 1, 1),
        ([["a"], ["b"]], [["a", "b"]], 1, 1),  # one message or two: both compare names in order
        ([["a"], ["b"]], [["b"], ["a"]], 0, 0),  # order between steps counts in both
        ([["a", "b"]], [["b", "a"]], 0, 1),  # order inside a parallel group counts in the code only
        ([["a", "b"], ["c"]], [["b"], ["a"], ["c"]], 0, 1),
        ([["a", "b"], ["c"]], [["a"], ["c"], ["b"]], 0, 0),
        ([["a"]], [["a"], ["a"]], 0, 0),
        ([["a"]], [], 0, 0),
        ([], [], 1, 1),
    ],
)
def test_exact_match_in_both_readings(gold, predicted, coded, described):
    made = counts(gold, predicted)
    assert (made["emr"], made["emr_described"]) == (coded, described)


def test_nothing_predicted_scores_zero_and_misses_all():
    made = counts([["a", "b"]], [])
    assert (made["tp"], made["fp"], made["fn"], made["f1"]) == (0, 0, 2, 0)


def test_a_broken_conversation_is_no_match_even_without_gold_calls():
    assert nothing([])["emr"] == 0 and counts([], [])["emr"] == 1


def test_micro_and_macro_by_hand():
    one = counts([["a"], ["b"], ["c"], ["d"]], [["a"], ["b"]])  # P 1, R 1/2, F1 2/3
    two = counts([["a"]], [["a"], ["x"], ["y"]])  # P 1/3, R 1, F1 1/2
    made = {name: score for name, (score, _, _) in estimate({"one": [one], "two": [two]}, 0, 0).items()}
    assert made["tp"] == pytest.approx(3 / 5) and made["tr"] == pytest.approx(3 / 5)
    assert made["tf1"] == pytest.approx(3 / 5)
    assert made["macro_tp"] == pytest.approx((1 + 1 / 3) / 2)
    assert made["macro_tr"] == pytest.approx(0.75)
    assert made["macro_tf1"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_the_published_single_step_row_of_a_model_follows_from_its_counts():
    """94 hits of 144 gold and 157 predicted calls: 59.87 precision, 65.28 recall."""
    sums = counts([["a"] * 144], [["a"] * 94 + ["b"] * 63])
    made = estimate({"all": [sums]}, 0, 0)
    assert round(100 * made["tp"][0], 2) == 59.87 and round(100 * made["tr"][0], 2) == 65.28


def test_intervals_recompute_micro_scores_from_whole_tasks():
    by_task = {f"t{k}": [counts([["a"] * (k + 1)], [["a"] * (k % 3)])] for k in range(30)}
    made = estimate(by_task, 500, 1)
    score, low, high = made["tf1"]
    assert low < score < high and made == estimate(dict(reversed(by_task.items())), 500, 1)
    assert made["macro_tf1"][0] != score


def test_trials_of_a_task_are_resampled_together():
    one = counts([["a"]], [["a"]])
    made = estimate({"t": [one] * 50}, 200, 0)
    assert made["tf1"] == (1.0, None, None)  # a single task has no interval, however many trials
