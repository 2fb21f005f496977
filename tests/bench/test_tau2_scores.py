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


def sample(task: str, trial: int, reward: float | None, status: str = "scored") -> SampleRecord:
    metrics = {} if reward is None else {"reward": reward, "upstream": reward}
    about = {"task": task, "trial": trial, "seed": 0, "status": SampleStatus(status)}
    return SampleRecord(**about, reward=reward, metrics=metrics)


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


@pytest.mark.parametrize(
    ("rewards", "metric", "strict", "upstream"),
    [
        ({"1": [1.0], "2": [None], "3": [0.0]}, "reward", 1 / 3, 1 / 2),  # what upstream drops counts zero
        ({"1": [1.0, 1.0], "2": [None, 0.0]}, "reward", 1 / 2, 2 / 3),  # over dialogues, trials unequal
        ({"1": [1.0, 1.0], "2": [1.0, 0.0], "3": [None, None]}, "pass^1", 1 / 2, 3 / 4),
        ({"1": [1.0, 1.0], "2": [1.0, 0.0], "3": [None, None]}, "pass^2", 1 / 3, 1 / 2),
    ],
)
def test_strict_counts_the_agents_failures_zero_and_upstream_leaves_them_out(
    rewards, metric, strict, upstream
) -> None:
    records = domain_scores(domain("airline", rewards), **HOW)
    ours, printed = score(records, metric, "strict"), score(records, metric, "upstream")
    assert (ours.score, printed.score) == (pytest.approx(strict), pytest.approx(upstream))
    every = [r for trials in rewards.values() for r in trials]
    assert (ours.n_tasks, ours.n_agent_failure) == (len(rewards), every.count(None))
    unequal = len({sum(r is not None for r in t) for t in rewards.values()} - {0}) > 1
    assert (printed.low is None) is unequal


@pytest.mark.parametrize("status", ["infra_failure", "missing"])
def test_one_lost_sample_withholds_every_number(status: str) -> None:
    samples = [sample("airline/1", 0, 1.0), sample("airline/2", 0, None, status)]
    lost = Tau2Domain(name="airline", samples=samples, trials=1)
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


def test_an_average_without_one_of_its_domains_or_with_an_incomplete_one_is_withheld() -> None:
    records = average_scores(three()[:2], {"telecom": "telecom: not asked for"}, **HOW)
    assert {r.score for r in records} == {None}
    assert all("telecom: not asked for" in r.skipped and r.floors == {} for r in records)
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
    nobody = EvalRoles(agent=Endpoint(base_url="http://127.0.0.1:1/v1", model="m"))
    asked = EvalRequest(roles=nobody, subsets=(), trials=1, seed=0, out=tmp_path / "out")
    folder = tmp_path / "out" / "floor" / "airline" / "raw"
    folder.mkdir(parents=True)
    ends = [("user_stop", {"reward": 1.0}), ("user_stop", {"reward": 0.0}), ("infrastructure_error", None)]
    rows = [
        {"task_id": str(i), "trial": 0, "termination_reason": stop, "reward_info": info}
        for i, (stop, info) in enumerate([*ends, ends[1]])
    ]
    (folder / "results.json").write_text(json.dumps({"tasks": [], "simulations": rows}))
    assert floor(asked, "airline") == 0.25 and floor(asked, "retail") is None
