"""Bootstrap intervals clustered by task, and pass^k."""

import itertools

import numpy as np
import pytest

from envace.bench.stats import chances, cluster_bootstrap, paired_bootstrap, stratified


def test_the_estimate_is_the_mean_over_tasks_of_trial_means():
    mean, low, high = cluster_bootstrap({"a": [1, 1, 1, 0], "b": [0.0], "c": [1.0]}, 500, 1)
    assert mean == pytest.approx((0.75 + 0 + 1) / 3) and 0 <= low <= mean <= high <= 1


def test_equal_tasks_leave_no_uncertainty():
    assert cluster_bootstrap({"a": [1, 0], "b": [0, 1], "c": [0.5]}, 200, 1) == (0.5, 0.5, 0.5)


def test_the_interval_knows_that_trials_of_a_task_hang_together():
    rng = np.random.default_rng(0)
    tasks = {f"t{i}": [float(v)] * 20 for i, v in enumerate(rng.integers(0, 2, 30))}
    _, low, high = cluster_bootstrap(tasks, 2000, 1)
    naive = 2 * 1.96 * 0.5 / np.sqrt(600)
    assert high - low > 3 * naive  # 600 values, but 30 independent ones
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(30), rel=0.2)


def test_seed_decides_and_order_does_not():
    values = {f"t{i}": [i / 10] for i in range(8)}
    backwards = dict(reversed(values.items()))
    assert cluster_bootstrap(values, 300, 5) == cluster_bootstrap(backwards, 300, 5)
    assert cluster_bootstrap(values, 300, 5) != cluster_bootstrap(values, 300, 6)


def test_one_task_has_an_estimate_and_no_interval():
    assert cluster_bootstrap({"a": [1.0, 0.0]}, 100, 1) == (0.5, None, None)


@pytest.mark.parametrize("values", [{}, {"a": []}, {"a": [float("nan")]}])
def test_no_values_and_nan_are_errors(values):
    with pytest.raises(ValueError):
        cluster_bootstrap(values, 100, 1)


def test_pairing_removes_the_difficulty_of_tasks():
    base = {f"t{i}": [i / 20] for i in range(20)}
    better = {t: [v[0] + 0.05] for t, v in base.items()}
    diff, low, high = paired_bootstrap(better, base, 500, 1)
    assert (diff, low, high) == pytest.approx((0.05, 0.05, 0.05))
    _, own_low, own_high = cluster_bootstrap(base, 500, 1)
    assert own_high - own_low > 0.2


def test_a_pair_on_different_tasks_is_refused():
    with pytest.raises(ValueError, match="1 tasks are in one of the two only, e.g. b"):
        paired_bootstrap({"a": [1.0], "b": [1.0]}, {"a": [0.0]}, 100, 1)


def test_strata_are_drawn_within_themselves_and_exhaustively_so():
    """Three tasks of each of two strata: 27 x 27 equally likely draws, of which the interval is the
    percentiles."""
    a, b = np.array([0.0, 0.2, 1.0]), np.array([0.1, 0.5, 0.9])
    of = lambda m: 0.25 * m["a"] + 0.75 * m["b"]  # noqa: E731
    means = [[np.mean(draw) for draw in itertools.product(v, repeat=3)] for v in (a, b)]
    exact = [0.25 * x + 0.75 * y for x in means[0] for y in means[1]]
    point, low, high = stratified({"a": a, "b": b}, of, 40_000, 1)
    assert point == pytest.approx(0.25 * 0.4 + 0.75 * 0.5)
    assert (low, high) == pytest.approx(tuple(np.quantile(exact, [0.025, 0.975])), abs=0.02)
    assert stratified({"b": b, "a": a}, of, 300, 1) == stratified({"a": a, "b": b}, of, 300, 1)


def test_a_stratum_of_one_task_has_an_estimate_and_no_interval():
    found = stratified({"a": np.array([1.0]), "b": np.array([0.0, 1.0])}, lambda m: m["a"] - m["b"], 50, 0)
    assert found == (0.5, None, None)


def test_many_resamples_are_cut_into_chunks_with_the_right_total(monkeypatch):
    monkeypatch.setattr("envace.intervals.CHUNK", 10)
    mean, low, high = cluster_bootstrap({"a": [0.0], "b": [1.0], "c": [1.0]}, 1001, 1)
    assert low < mean < high


@pytest.mark.parametrize(("k", "expected"), [(1, 0.75), (2, (1 / 6 + 1) / 2), (4, 0.5)])
def test_pass_hat_k_by_hand(k, expected):
    found = chances({"a": [1, 1, 0, 0], "b": [1, 1, 1, 1]}, k)
    assert np.mean(list(found.values())) == pytest.approx(expected)


def test_a_task_of_too_few_trials_has_no_chance():
    with pytest.raises(ValueError, match="4 trials, pass\\^5 needs 5"):
        chances({"a": [1, 1, 0, 0]}, 5)
