"""Differences over several seeds, by hand.

Run: pytest tests/report/test_estimates.py
"""

import pytest

from envace.report.estimates import Estimate, call_values, difference, gap_values, paired, pool, pooled
from envace.report.results import EvalRun, FidelityRun
from envace.report.study import arm_of
from envace.report.table import difference_cells, reading, spread
from envace.types import SampleRecord, SampleStatus


def run(policy: str, wins: dict[str, tuple[int, ...]]) -> EvalRun:
    samples = tuple(
        SampleRecord(task=t, trial=k, seed=0, status=SampleStatus.SCORED, metrics={"success": float(w)})
        for t, ws in wins.items()
        for k, w in enumerate(ws)
    )
    return EvalRun(name=policy, policy=policy, samples=samples)


def test_a_pooled_score_is_the_mean_over_tasks_of_all_their_trials() -> None:
    e = pooled([run("a-1", {"x": (1, 0), "y": (0, 0)}), run("a-2", {"x": (1, 1), "y": (1, 0)})], 200)
    assert (e.value, e.n_tasks, e.trials) == (0.5, 2, 4)  # x: 3/4, y: 1/4
    assert (e.low, e.high) == (0.25, 0.75)


def test_a_difference_uses_only_tasks_both_sides_have() -> None:
    before = run("start", {"x": (0,), "y": (1,), "z": (1,)})
    after = [run("a-1", {"x": (1,), "y": (1,)}), run("a-2", {"x": (0,), "y": (1,)})]
    g = difference([before], after, 200)
    assert (g.value, g.n_tasks, g.trials) == (0.25, 2, 1)  # x: 1/2 - 0, y: 1 - 1
    assert difference([None], after, 200) is None and difference([before], [], 200) is None


def test_equal_gains_on_every_task_leave_no_doubt() -> None:
    before, after = run("start", {"x": (0,), "y": (0,)}), run("a-1", {"x": (1,), "y": (1,)})
    g = difference([before], [after], 200)
    assert g.decided and (g.low, g.high) == (1.0, 1.0) and reading(g) == "better"
    assert reading(difference([after], [before], 200)) == "worse"
    assert reading(Estimate(value=0.3, low=-0.1, high=0.7)) == "inside noise"
    assert reading(Estimate(value=0.3)) == "no interval"


def test_distance_to_a_floor_moves_the_interval_along() -> None:
    e = Estimate(value=0.5, low=0.3, high=0.7, n_tasks=9).minus(0.4)
    assert (e.value, e.low, e.high) == tuple(pytest.approx(x) for x in (0.1, -0.1, 0.3))
    assert not e.decided and e.n_tasks == 9


def test_cells_of_a_difference_and_of_a_score() -> None:
    assert difference_cells(Estimate(value=0.25, low=0.1, high=0.4), ("above", "below")) == (
        "+0.250",
        "[+0.100, +0.400]",
        "above",
    )
    assert difference_cells(None) == ("–", "–", "–")
    assert (
        spread(Estimate(value=0.5, low=0.25, high=0.75)) == "0.500 [0.250, 0.750]"
        and spread(Estimate(value=0.5)) == "0.500"
    )


def test_calls_and_plays_are_grouped_by_task() -> None:
    calls = (
        {"task": "x", "by": "policy", "few_shot": "gold", "recorded": True, "exact": 1.0},
        {"task": "x", "by": "policy", "few_shot": "gold", "recorded": False, "exact": 0.0},
        {"task": "x", "by": "copy", "few_shot": "gold", "recorded": True, "exact": 0.0},
        {"task": "y", "by": "policy", "few_shot": "none", "recorded": True, "exact": None},
    )
    plays = (
        {"task": "x", "rehearsed": 1.0, "true": 0.0},
        {"task": "x", "rehearsed": 0.0, "true": 1.0},
        {"task": "y", "rehearsed": None, "true": None},
    )
    f = FidelityRun(policy="a-1", calls=calls, plays=plays)
    assert call_values(f, "gold", "exact") == {"x": [1.0, 0.0]}
    assert (
        call_values(f, "gold", "exact", recorded=True) == {"x": [1.0]}
        and call_values(f, "none", "exact") == {}
    )
    assert gap_values(f) == {"x": [1.0, -1.0]}
    assert pool([{"x": [1.0]}, {"x": [0.0], "y": [2.0]}]) == {"x": [1.0, 0.0], "y": [2.0]}
    assert paired({"x": [1.0]}, {"y": [1.0]}, 100) is None


@pytest.mark.parametrize(
    ("policy", "arm"), [("start", "start"), ("envace-1", "envace"), ("a-b-12", "a-b"), ("sft-x", "sft-x")]
)
def test_an_arm_is_a_policy_without_its_seed(policy: str, arm: str) -> None:
    assert arm_of(policy) == arm
