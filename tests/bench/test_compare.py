"""Two policies on the same tasks: the published number is differenced, computed by hand beside the code."""

import itertools

import numpy as np
import pytest

from envace.bench.bfcl.scores import DERIVED, score_records
from envace.bench.compare import difference, statistic
from envace.bench.finmcp.scores import COUNTS, counts
from envace.bench.tau2.scores import Tau2Domain, average_scores
from envace.bench.tau2.tasks import AVERAGED
from envace.bench.vita import scores as vita
from envace.types import SampleRecord, SampleStatus

S = SampleStatus
OFFLINE = DERIVED["offline_subset"].needs


def sample(task, reward, trial=0, status=S.SCORED, **metrics) -> SampleRecord:
    """None is a failure of the agent."""
    status = S.AGENT_FAILURE if reward is None else status
    numbers = {} if reward is None else {"reward": reward, "upstream": reward, **metrics}
    return SampleRecord(task=task, trial=trial, seed=0, reward=reward, metrics=numbers, status=status)


def played(rewards, status=S.SCORED, **metrics):
    """task -> reward or rewards, one a trial."""
    trials = {task: own if isinstance(own, tuple) else (own,) for task, own in rewards.items()}
    return [sample(t, r, k, status, **metrics) for t, own in trials.items() for k, r in enumerate(own)]


def raw(samples):
    return np.mean([s.reward or 0.0 for s in samples])


def diff(benchmark, subset, after, before, metric="reward", n=200):
    (value, low, high), tasks = difference(statistic(benchmark, subset, metric), after, before, n, 0)
    return value, low, high, tasks


def bfcl(live, turns):
    """40 live_multiple entries of which `live` are right, two multi-turn entries a category, `turns`
    right."""
    sizes = {c: 2 for c in OFFLINE} | {"live_multiple": 40}
    right = {c: turns if c.startswith("multi_turn") else 1 for c in OFFLINE} | {"live_multiple": live}
    return played({f"{c}/{i:02}": float(i < right[c]) for c in OFFLINE for i in range(sizes[c])}), sizes


def test_bfcls_overall_may_fall_while_the_mean_of_all_entries_rises():
    (a, sizes), (b, _) = bfcl(live=30, turns=0), bfcl(live=10, turns=1)
    assert raw(a) > raw(b)
    value, low, high, tasks = diff("bfcl", "offline_subset", a, b)
    live = 0.1 * (1053 / 1351) * (30 - 10) / 40  # live is 10 % of it, weighted by full category sizes
    assert value == pytest.approx((live - 0.3 * 0.5) / 0.8) and value < 0
    assert low < value < high and tasks == sum(sizes.values())
    tasks_of = {c: [f"{c}/{i:02}" for i in range(n)] for c, n in sizes.items()}
    how = {
        "floors": dict.fromkeys(sizes, 0.0),
        "skipped": {},
        "min_complete": 1.0,
        "bootstrap": 10,
        "seed": 0,
    }
    made = [score_records(p, tasks_of, 1, **how) for p in (a, b)]
    new, old = (
        next(r.score for r in own if (r.subset, r.source) == ("offline_subset", "derived")) for own in made
    )
    assert value == pytest.approx(new - old)


def tau2(rewards):
    return played({f"{d}/{i}": r for d, own in rewards.items() for i, r in enumerate(own)})


def test_tau2s_macro_and_micro_average_may_differ_in_sign():
    a = tau2({"airline": (0.0, 0.0), "retail": (0.0, 0.0), "telecom": (1.0,) * 9 + (None,)})
    b = tau2({"airline": (1.0, 0.0), "retail": (1.0, 0.0), "telecom": (1.0,) * 4 + (0.0,) * 6})
    assert raw(a) > raw(b)
    macro, low, high, tasks = diff("tau2", "macro", a, b)
    assert macro == pytest.approx((-0.5 - 0.5 + 0.5) / 3) and low < macro < high and tasks == 14
    assert diff("tau2", "micro", a, b)[0] == pytest.approx((9 - 6) / 14)
    assert diff("tau2", "telecom", a, b)[0] == pytest.approx(0.5)
    domains = [
        [Tau2Domain(name=d, samples=[s for s in p if s.task.startswith(d)], trials=1) for d in AVERAGED]
        for p in (a, b)
    ]
    first, second = (average_scores(d, {}, bootstrap=10)[0].score for d in domains)
    assert macro == pytest.approx(first - second)


def test_vitas_averages_are_differenced_like_they_are_published():
    sizes = {"delivery": 4, "instore": 1, "ota": 1, "cross": 2}
    won = {f"{d}/{i}": float(d == "delivery") for d, n in sizes.items() for i in range(n)}
    more = {"rubrics": 1.0, "steps": 1.0, "calls": 1.0}
    a, b = played(won, **more), played({task: 1 - r for task, r in won.items()}, **more)
    assert diff("vita", "macro", a, b)[0] == pytest.approx((1 - 1 - 1 - 1) / 4)
    assert diff("vita", "micro", a, b)[0] == pytest.approx((4 - 4) / 8)
    new, old = (
        vita.records(tuple(sizes), p, dict.fromkeys(sizes, 0.0), bootstrap=10)[-2].score for p in (a, b)
    )
    assert new - old == pytest.approx(-0.5)


def finmcp(*conversations):
    """(gold calls, calls found, calls in vain) of each conversation."""
    found = [counts([["a"] * gold], [["a"] * hits + ["b"] * vain]) for gold, hits, vain in conversations]
    return [sample(f"multi/{k}", n["f1"], **n) for k, n in enumerate(found)]


def test_finmcps_micro_f1_may_fall_while_the_mean_of_conversations_rises():
    a, b = finmcp((1, 1, 0), (10, 0, 0)), finmcp((1, 0, 0), (10, 6, 0))
    assert raw(a) == 0.5 and raw(b) == pytest.approx(0.375)
    assert diff("finmcp", "all", a, b, "tf1")[0] == pytest.approx(2 / 12 - 12 / 17)
    assert diff("finmcp", "multi", a, b, "tr")[0] == pytest.approx(1 / 11 - 6 / 11)
    assert diff("finmcp", "all", a, b, "macro_tf1")[0] == pytest.approx(0.125)


def test_finmcps_interval_is_that_of_every_possible_draw():
    """Three conversations: 27 equally likely draws, the same for both policies; the extremes hold 1/27
    each."""
    a, b = finmcp((1, 1, 0), (4, 1, 2), (9, 8, 1)), finmcp((1, 0, 3), (4, 3, 0), (9, 5, 0))

    def tf1(chosen):
        sums = {c: sum(s.metrics[c] for s in chosen) for c in COUNTS}
        return 2 * sums["tp"] / (2 * sums["tp"] + sums["fp"] + sums["fn"])

    draws = list(itertools.product(range(3), repeat=3))
    exact = [tf1([a[i] for i in d]) - tf1([b[i] for i in d]) for d in draws]
    value, low, high, _ = diff("finmcp", "all", a, b, "tf1", n=5000)
    assert value == pytest.approx(tf1(a) - tf1(b))
    assert (low, high) == pytest.approx((min(exact), max(exact)))


def test_a_policy_against_itself_has_no_spread_however_hard_the_tasks_differ():
    a, _ = bfcl(live=13, turns=1)
    assert diff("bfcl", "offline_subset", a, a) == (0.0, 0.0, 0.0, len(a))


def test_trials_of_a_task_are_one_task_in_a_difference():
    a, b = played({"mock/1": (1.0, 0.0), "mock/2": (1.0, 1.0)}), played({"mock/1": 0.0, "mock/2": 1.0})
    value, low, high, tasks = diff("tau2", "mock", a, b)
    assert (value, low, high, tasks) == (0.25, 0.0, 0.5, 2)


def test_only_tasks_that_both_have_scored_are_compared():
    a = played({"airline/1": 1.0, "airline/2": 0.0, "airline/3": 1.0})
    b = played({"airline/1": 0.0, "airline/3": 1.0}) + played({"airline/2": 0.0}, S.INFRA_FAILURE)
    assert diff("tau2", "airline", a, b)[::3] == (0.5, 2)


def test_a_score_that_lacks_a_part_on_one_side_has_no_difference():
    b = tau2({"airline": (1.0,), "retail": (1.0,)})
    a = b + tau2({"telecom": (1.0,)})
    assert difference(statistic("tau2", "macro", "reward"), a, b, 10, 0) is None
    assert difference(statistic("finmcp", "all", "tf1"), [], finmcp((1, 1, 0)), 10, 0) is None


@pytest.mark.parametrize(
    ("benchmark", "subset", "metric"),
    [
        ("tau2", "macro", "pass^2"),
        ("finmcp", "scenery-funds", "tf1"),
        ("bfcl", "macro", "reward"),
        ("desk", "all", "reward"),
    ],
)
def test_what_is_no_function_of_task_means_is_not_compared(benchmark, subset, metric):
    assert statistic(benchmark, subset, metric) is None
