"""Every baseline by hand, and what a role group can be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_kit import row as any_row

from envace.config.method import Method
from envace.errors import DataError
from envace.learn.advantage import role_advantages
from envace.learn.running import priors, read_means, updated, write_means
from envace.types import Role

ACT, REHEARSE = "act", "rehearse"


def adv(rewards, episodes, prior=None, **switches):
    """Advantages of ACT rows of one prompt."""
    n = len(rewards)
    prior_R = None if prior is None else np.full(n, prior)
    return role_advantages(rewards, ["x"] * n, [ACT] * n, episodes, prior_R=prior_R, **switches)


# --- leave one out --------------------------------------------------------------------------------


def test_leave_one_out_compares_with_the_other_episodes():
    a, _ = adv([1.0, 0.5, 0.0], list("abc"), baseline="leave_one_out")
    assert a.tolist() == [0.75, 0.0, -0.75]


def test_leave_one_out_counts_an_episode_once_whatever_its_rows():
    a, _ = adv([1.0, 1.0, 0.0], list("aab"), baseline="leave_one_out")
    assert a.tolist() == [1.0, 1.0, -1.0]


def test_rows_of_one_episode_with_a_penalty_share_their_baseline():
    a, _ = adv([1.0, 0.8, 0.4], list("aab"), baseline="leave_one_out")
    np.testing.assert_allclose(a, [0.6, 0.4, -0.5])  # b is compared with a's mean of 0.9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_leave_one_out_is_the_trajectory_baseline_times_n_over_n_minus_one(rewards):
    n, names = len(rewards), [str(k) for k in range(len(rewards))]
    own, _ = adv(rewards, names, baseline="trajectory")
    out, _ = adv(rewards, names, baseline="leave_one_out")
    np.testing.assert_allclose(out, own * n / (n - 1), atol=1e-12)


# --- shrinkage ------------------------------------------------------------------------------------


def test_shrinkage_draws_the_mean_towards_the_running_one():
    a, _ = adv([1.0, 0.0], list("ab"), prior=0.25, baseline="shrinkage", shrink_weight=2.0)
    assert a.tolist() == [0.625, -0.375]  # baseline (2 * 0.5 + 2 * 0.25) / 4


@pytest.mark.parametrize(
    "switches", [{"prior": None, "shrink_weight": 2.0}, {"prior": 0.9, "shrink_weight": 0.0}]
)
def test_without_a_running_mean_or_weight_shrinkage_is_the_trajectory_baseline(switches):
    a, found = adv([1.0, 0.0, 0.0, 0.7], list("abbc"), baseline="shrinkage", **switches)
    np.testing.assert_allclose(a, adv([1.0, 0.0, 0.0, 0.7], list("abbc"))[0])
    assert adv([0.7], ["a"], baseline="shrinkage", **switches)[0].tolist() == [0.0]
    assert adv([0.7], ["a"], baseline="shrinkage", lone="raw", **switches)[0].tolist() == [0.7]


def test_shrinkage_gives_a_lone_episode_and_a_constant_group_something_to_be_compared_with():
    for lone in ("zero", "raw"):
        a, found = adv([0.7], ["a"], prior=0.25, baseline="shrinkage", shrink_weight=2.0, lone=lone)
        np.testing.assert_allclose(a, [0.3])  # baseline (0.7 + 2 * 0.25) / 3 = 0.4
        assert found.lone == 1
    a, found = adv([0.5, 0.5], list("ab"), prior=0.25, baseline="shrinkage", shrink_weight=2.0)
    assert a.tolist() == [0.125, 0.125] and found.constant == 1 and found.lone == 0


# --- turns ----------------------------------------------------------------------------------------


def test_turns_are_compared_with_the_same_turn_of_other_episodes():
    a, found = role_advantages(
        [1.0, 0.5, 0.5, 0.3, 0.1], ["x"] * 5, [ACT] * 5, list("aabab"), turn_R=[0, 1, 0, 2, 2]
    )
    np.testing.assert_allclose(a, [0.25, 0.0, -0.25, 0.1, -0.1])  # only a reached turn 1
    assert (found.groups, found.lone) == (3, 1)


# --- what a group can be --------------------------------------------------------------------------

KINDS = (  # reward, prompt, role, episode, trained
    (1.0, "mixed", ACT, "a", True),
    (0.0, "mixed", ACT, "b", True),
    (1.0, "mixed", REHEARSE, "a", True),  # lone
    (0.5, "constant", ACT, "c", True),
    (0.5, "constant", ACT, "d", True),  # and nobody rehearsed: empty
    (None, "unscored", ACT, "e", True),
    (None, "unscored", ACT, "f", True),
    (0.0, "padded", ACT, "g", False),  # no trained row of either role: two empty groups
)


@pytest.mark.parametrize("baseline", ["generation", "trajectory", "leave_one_out", "shrinkage"])
def test_lone_constant_empty_and_unscored_groups_are_counted_and_get_zero(baseline):
    reward, group, role, episode, trained = zip(*KINDS)
    a, found = role_advantages(reward, group, role, episode, baseline=baseline, trained_R=trained)
    assert a[2:].tolist() == [0.0] * 6 and a[0] == -a[1] > 0
    assert (found.groups, found.lone, found.constant) == (3, 1, 1)
    assert (found.empty_groups, found.unscored_groups) == (4, 1)
    act, rehearse = found.roles[ACT], found.roles[REHEARSE]
    assert (act.groups, act.lone, act.constant, act.empty_groups, act.unscored_groups) == (2, 0, 1, 1, 1)
    assert (rehearse.groups, rehearse.lone, rehearse.empty_groups, rehearse.unscored_groups) == (1, 1, 3, 0)


# --- the running mean -----------------------------------------------------------------------------


def row(*args, episode="a", source="desk", **more):
    return any_row(*args, group="x", episode=episode, source=source, **more)


SHRINK = Method(baseline="shrinkage", shrink_memory=0.75)


def test_the_running_mean_is_over_trajectories_of_a_role():
    rows = [row(1.0), row(1.0), row(0.0, episode="b"), row(0.25, Role.REHEARSE), row(None, episode="c")]
    rows.append(row(1.0, episode="d", trained=False))
    first = updated({}, rows, SHRINK)
    assert first == {"act/desk": 0.5, "rehearse/desk": 0.25}
    second = updated(first, [row(1.0)], SHRINK)
    assert second == {"act/desk": 0.75 * 0.5 + 0.25 * 1.0, "rehearse/desk": 0.25}
    np.testing.assert_array_equal(priors(rows[3:5], second, SHRINK), [0.25, 0.625])


def test_each_data_source_has_a_running_mean_of_its_own():
    """Step 1 knows both sources, step 2 one of them: the other's mean stays, and neither shifts the other."""
    hard = [row(0.0, episode="c", source="cm2"), row(0.5, episode="d", source="cm2")]
    easy = [row(1.0, episode="a"), row(0.8, episode="b")]
    first = updated({}, easy + hard, SHRINK)
    assert first == pytest.approx({"act/desk": 0.9, "act/cm2": 0.25})
    second = updated(first, [row(0.65, episode="e", source="cm2")], SHRINK)
    assert second == pytest.approx({"act/desk": 0.9, "act/cm2": 0.75 * 0.25 + 0.25 * 0.65})
    np.testing.assert_allclose(priors([easy[0], hard[0]], second, SHRINK), [0.9, 0.35])
    assert np.isnan(priors([row(1.0, source="new"), row(1.0, Role.REHEARSE)], second, SHRINK)).all()
    # the source that answers calls is one for the whole run and keeps nothing apart
    world = Method(baseline="shrinkage", source="environment")
    assert list(updated({}, easy, world)) == ["act/desk"]


def test_turns_credited_apart_have_running_means_apart():
    method = Method(baseline="shrinkage", credit="reward_to_go")
    means = updated({}, [row(1.0), row(0.5, turn=1)], method)
    assert means == {"act/desk/0": 1.0, "act/desk/1": 0.5}


def test_the_state_of_every_step_is_kept_and_a_lost_one_is_an_error(tmp_path):
    assert read_means(tmp_path, 0) == {}
    write_means(tmp_path, 1, {"act/desk": 0.1 + 0.2})
    write_means(tmp_path, 2, {"act/desk": 0.5})
    write_means(tmp_path, 2, {"act/desk": 0.6})  # the step was played again
    assert read_means(tmp_path, 1) == {"act/desk": 0.1 + 0.2}
    assert read_means(tmp_path, 2) == {"act/desk": 0.6}
    with pytest.raises(FileNotFoundError):
        read_means(tmp_path, 3)


def test_means_of_another_format_are_refused_and_not_read_as_none(tmp_path):
    write_means(tmp_path, 1, {"act/desk": 0.5})
    (tmp_path / "running/1.json").write_text('{"act/rehearse": 0.5}')
    with pytest.raises(DataError, match="running/1.json holds .* another format .* starts a new work folder"):
        read_means(tmp_path, 1)
