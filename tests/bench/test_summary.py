"""Score records: who is in the denominator, and when there is no headline."""

import pytest

from envace.bench.summary import (
    complete_enough,
    complete_plan,
    plan,
    summarise,
    upstream_by_task,
    values_by_task,
)
from envace.types import SampleRecord, SampleStatus, to_json

SCORED, AGENT, INFRA, MISSING = SampleStatus


def sample(task: str, trial: int, success: float = 0.0, status: SampleStatus = SCORED) -> SampleRecord:
    metrics = {"success": success, "steps": 4.0} if status is SCORED else {}
    return SampleRecord(task=task, trial=trial, seed=1, status=status, metrics=metrics)


PLANNED = plan(["a", "b"], 2)


def records(samples, planned=PLANNED, **changes):
    fields = {"benchmark": "desk", "metrics": ("success", "steps"), "bootstrap": 100, **changes}
    return {r.metric: r for r in summarise(samples, planned, **fields)}


def test_a_complete_run_has_a_headline_with_its_interval_and_counts():
    samples = [sample("a", 0, 1), sample("a", 1, 1), sample("b", 0, 1), sample("b", 1, 0)]
    r = records(samples, floors={"success": {"do_nothing": 0.0}}, policy="start")["success"]
    assert r.score == 0.75 and r.low <= 0.75 <= r.high
    assert (r.n_tasks, r.n_trials, r.n_scored, r.n_missing) == (2, 2, 4, 0)
    assert r.floors == {"do_nothing": 0.0} and r.policy == "start" and r.source == "strict"
    assert to_json(r)["score"] == 0.75


def test_an_agent_failure_counts_zero_and_is_no_step_count():
    samples = [sample("a", 0, 1), sample("a", 1, status=AGENT), sample("b", 0, 1), sample("b", 1, 1)]
    found = records(samples)
    assert found["success"].score == 0.75 and found["success"].n_agent_failure == 1
    assert found["steps"].score == 4.0 and found["steps"].scale == "count"


def test_bug_30_tau2_493_one_success_among_infrastructure_failures_is_no_perfect_score():
    planned = plan([f"t{i}" for i in range(400)], 1)
    samples = [sample("t0", 0, 1)] + [sample(f"t{i}", 0, status=INFRA) for i in range(1, 400)]
    r = records(samples, planned)["success"]
    assert r.score is None and r.low is None and (r.n_scored, r.n_infra_failure, r.n_tasks) == (1, 399, 400)


def test_samples_never_seen_are_missing_and_withhold_the_headline():
    r = records([sample("a", 0, 1), sample("a", 1, 1)])["success"]
    assert r.score is None and r.n_missing == 2 and r.n_tasks == 2 and r.n_trials == 2


def test_a_lower_gate_lets_a_part_through_and_still_shows_what_is_lost():
    samples = [sample("a", 0, 1), sample("a", 1, 0), sample("b", 0, 1), sample("b", 1, status=INFRA)]
    r = records(samples, min_complete=0.75)["success"]
    assert r.score == 0.75 and r.n_infra_failure == 1
    assert records(samples, min_complete=0.76)["success"].score is None


def test_what_the_harness_counted_is_gathered_by_task_and_gated_like_our_own():
    known = {"task": "a", "seed": 0, "status": SCORED}
    kept = [SampleRecord(trial=k, metrics={"upstream": u}, **known) for k, u in enumerate((1, 0))]
    lost = SampleRecord(task="b", trial=0, seed=0, status=INFRA)
    assert upstream_by_task([*kept, lost]) == {"a": [1.0, 0.0]}
    assert complete_enough([*kept, lost], 2 / 3) and not complete_enough([*kept, lost], 0.67)
    assert not complete_enough([], 0.0)


def test_nothing_scored_has_no_headline_even_without_a_gate():
    assert records([], min_complete=0.0)["success"].score is None
    assert records([], planned=[], min_complete=0.0)["success"].score is None


@pytest.mark.parametrize(
    "extra, why", [(sample("a", 0), "occurs twice"), (sample("z", 0), "was not planned")]
)
def test_samples_of_another_run_are_refused(extra, why):
    with pytest.raises(ValueError, match=why):
        complete_plan([sample("a", 0), extra], PLANNED)


def test_a_scored_sample_without_the_metric_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match="has no checklist"):
        values_by_task([sample("a", 0)], "checklist")
