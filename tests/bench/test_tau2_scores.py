"""What tau²'s samples are worth: strict beside upstream, pass^k, averages over domains, floors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envace.bench.harness.spec import EvalRequest, EvalRoles
from envace.bench.tau2.adapter import floor
from envace.bench.tau2.scores import Tau2Domain, average_scores, domain_scores
from envace.types import Endpoint, SampleRecord, SampleStatus, ScoreRecord

HOW = {"bootstrap": 300}


def sample(
    task: str, trial: int, reward: float | None, status: str = "scored", upstream: bool = True
) -> SampleRecord:
    metrics: dict[str, float] = {} if reward is None else {"reward": reward}
    if upstream and reward is not None:
        metrics["upstream"] = reward
    return SampleRecord(
        task=task, trial=trial, seed=0, status=SampleStatus(status), reward=reward, metrics=metrics
    )


def domain(name: str, rewards: dict[str, list[float | None]], **more: Any) -> Tau2Domain:
    """None is a dialogue that ended in the agent's exception, which upstream leaves out."""
    samples = [
        sample(f"{name}/{t}", k, r, "scored" if r is not None else "agent_failure")
        for t, trials in rewards.items()
        for k, r in enumerate(trials)
    ]
    return Tau2Domain(name=name, samples=samples, trials=max(map(len, rewards.values())), **more)


def score(records: list[ScoreRecord], metric: str, source: str, subset: str = "") -> ScoreRecord:
    (found,) = [r for r in records if (r.metric, r.source) == (metric, source) and subset in ("", r.subset)]
    return found


def test_what_upstream_drops_counts_zero_beside_it() -> None:
    records = domain_scores(domain("airline", {"1": [1.0], "2": [None], "3": [0.0]}), **HOW)
    strict, upstream = score(records, "reward", "strict"), score(records, "reward", "upstream")
    assert strict.score == pytest.approx(1 / 3) and upstream.score == pytest.approx(1 / 2)
    assert (strict.n_scored, strict.n_agent_failure, strict.n_tasks) == (2, 1, 3)


def test_upstream_averages_over_dialogues_where_trials_are_unequal() -> None:
    records = domain_scores(domain("airline", {"1": [1.0, 1.0], "2": [None, 0.0]}), **HOW)
    upstream = score(records, "reward", "upstream")
    assert upstream.score == pytest.approx(2 / 3) and upstream.low is None
    assert score(records, "reward", "strict").score == pytest.approx(1 / 2)


def test_pass_hat_k_needs_all_of_k_trials() -> None:
    records = domain_scores(domain("retail", {"1": [1.0, 1.0], "2": [1.0, 0.0], "3": [None, None]}), **HOW)
    assert score(records, "pass^1", "strict").score == pytest.approx(1 / 2)
    assert score(records, "pass^2", "strict").score == pytest.approx(1 / 3)
    assert score(records, "pass^2", "upstream").score == pytest.approx(1 / 2)


@pytest.mark.parametrize("status", ["infra_failure", "missing"])
def test_one_lost_sample_withholds_every_number(status: str) -> None:
    lost = Tau2Domain(
        name="airline", samples=[sample("airline/1", 0, 1.0), sample("airline/2", 0, None, status)], trials=1
    )
    records = domain_scores(lost, **HOW)
    assert {r.score for r in records} == {None}
    assert records[0].n_infra_failure + records[0].n_missing == 1
    tolerant = domain_scores(lost, bootstrap=10, min_complete=0.5)
    assert score(tolerant, "reward", "strict").score == 1.0


def three(**more: Any) -> list[Tau2Domain]:
    return [
        domain("airline", {"1": [1.0], "2": [0.0]}, floor=0.4, **more),
        domain("retail", {str(i): [1.0] for i in range(6)}, floor=0.1, **more),
        domain("telecom", {str(i): [0.0] for i in range(4)}, floor=0.0, **more),
    ]


def test_macro_weighs_domains_and_micro_tasks_equally() -> None:
    records = average_scores(three(), {}, **HOW)
    macro, micro = (score(records, "reward", "derived", name) for name in ("macro", "micro"))
    assert macro.score == pytest.approx(0.5) and micro.score == pytest.approx(7 / 12)
    assert macro.floors["do_nothing"] == pytest.approx(0.5 / 3)
    assert micro.floors["do_nothing"] == pytest.approx((2 * 0.4 + 6 * 0.1) / 12)
    assert macro.low <= macro.score <= macro.high and macro.n_tasks == 12


def test_an_average_without_one_of_its_domains_is_withheld_and_says_which() -> None:
    records = average_scores(three()[:2], {"telecom": "telecom: not asked for"}, **HOW)
    assert {r.score for r in records} == {None}
    assert all("telecom: not asked for" in r.skipped and r.floors == {} for r in records)


def test_an_incomplete_domain_withholds_the_average() -> None:
    airline, retail, telecom = three()
    lost = [*retail.samples, sample("retail/9", 0, None, "missing")]
    retail = Tau2Domain(name="retail", samples=lost, trials=1)
    records = average_scores([airline, retail, telecom], {}, **HOW)
    assert all(r.score is None and "retail: incomplete" in r.skipped for r in records)


def test_labels_of_different_domains_stand_beside_each_other() -> None:
    shared = {"torch": "2", "tau2": "v1.0.1"}
    airline, *others = three(identity={"policy": "p", "versions": shared})
    own = {"policy": "p", "versions": shared | {"tau2_basis": "DB"}}
    airline = Tau2Domain(name="airline", samples=airline.samples, trials=1, identity=own)
    first = average_scores([airline, *others], {}, **HOW)[0]
    assert first.versions == shared | {"tau2_basis": "DB"} and first.policy == "p"


def test_the_floor_is_read_from_the_dialogues_of_the_agent_that_does_nothing(tmp_path: Path) -> None:
    nobody = Endpoint(base_url="http://127.0.0.1:1/v1", model="m")
    asked = EvalRequest(roles=EvalRoles(agent=nobody), subsets=(), trials=1, seed=0, out=tmp_path / "out")
    folder = tmp_path / "out" / "floor" / "airline" / "raw"
    folder.mkdir(parents=True)
    ends = [("user_stop", 1.0), ("user_stop", 0.0), ("infrastructure_error", None), ("user_stop", 0.0)]
    rows = [
        {
            "task_id": str(i),
            "trial": 0,
            "termination_reason": stop,
            "reward_info": None if r is None else {"reward": r},
        }
        for i, (stop, r) in enumerate(ends)
    ]
    (folder / "results.json").write_text(json.dumps({"tasks": [], "simulations": rows}))
    assert floor(asked, "airline") == 0.25
    assert floor(asked, "retail") is None
