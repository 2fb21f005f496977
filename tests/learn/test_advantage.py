"""Role-wise advantages on hand-computed numbers, and the properties no batch may break."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_kit import row

from envace.config.method import PRESETS, Method
from envace.learn.advantage import advantages, role_advantages
from envace.types import Role

ACT, REHEARSE = "act", "rehearse"


def adv(rewards, groups, roles, episodes, **switches):
    return role_advantages(rewards, groups, roles, episodes, **switches)


# --- the specification's vectors ------------------------------------------------------------------

VECTOR = ([1.0, 1.0, 0.0, 1.0], ["x"] * 4, [ACT, ACT, ACT, REHEARSE], ["a", "a", "b", "a"])


def test_generation_baseline_with_a_raw_lone_row():
    """Test vector (i) of the specification (method, section 12)."""
    a, found = adv(*VECTOR, baseline="generation", lone="raw")
    np.testing.assert_allclose(a, [1 / 3, 1 / 3, -2 / 3, 1.0], atol=1e-15)
    assert (found.groups, found.lone, found.constant) == (2, 1, 0)


def test_trajectory_baseline_counts_an_episode_once():
    """Test vector (ii): rows 1 and 2 are of one trajectory."""
    a, _ = adv(*VECTOR, baseline="trajectory", lone="raw")
    np.testing.assert_array_equal(a, [0.5, 0.5, -0.5, 1.0])


@pytest.mark.parametrize("baseline", ["generation", "trajectory"])
def test_equal_rewards_give_exact_zeros_and_are_counted(baseline):
    """Test vector (iii)."""
    third = 0.1 + 0.2  # not representable: a plain mean of three would leave 1e-17 behind
    a, found = adv([third] * 3, ["x"] * 3, [ACT] * 3, ["a", "b", "c"], baseline=baseline)
    assert a.tolist() == [0.0, 0.0, 0.0] and found.constant == 1 and found.roles[ACT].adv_zero == 1.0


def test_a_long_success_keeps_its_credit_under_the_trajectory_baseline():
    rewards, episodes = [1.0] * 8 + [0.0] * 6, ["long"] * 8 + ["a", "a", "b", "b", "c", "c"]
    args = (rewards, ["x"] * 14, [ACT] * 14, episodes)
    assert adv(*args, baseline="generation")[0][0] == pytest.approx(1 - 8 / 14)
    assert adv(*args, baseline="trajectory")[0][0] == pytest.approx(0.75)


# --- degenerate groups ----------------------------------------------------------------------------


def test_bug_18_a_group_of_one_gets_zero_by_default_and_its_reward_when_raw():
    args = ([0.7, 0.2, 0.4], ["a", "b", "b"], [ACT] * 3, ["1", "2", "3"])
    for baseline in ("generation", "trajectory"):
        a, found = adv(*args, baseline=baseline)
        assert a[0] == 0.0 and found.lone == 1
        assert adv(*args, baseline=baseline, lone="raw")[0][0] == 0.7


def test_one_episode_of_several_rows_is_lone_only_for_the_trajectory_baseline():
    args = ([0.7, 0.7], ["a", "a"], [ACT, ACT], ["1", "1"])
    a, found = adv(*args, baseline="trajectory", lone="raw")
    assert a.tolist() == [0.7, 0.7] and found.lone == 1 and found.constant == 0
    a, found = adv(*args, baseline="generation", lone="raw")
    assert a.tolist() == [0.0, 0.0] and found.lone == 0 and found.constant == 1


def test_a_role_nobody_played_has_no_group():
    _, found = adv([1.0, 0.0], ["x", "x"], [ACT, ACT], ["a", "b"])
    assert found.groups == 1 and list(found.roles) == [ACT]


def test_an_empty_batch_is_an_empty_answer():
    a, found = adv([], [], [], [])
    assert a.tolist() == [] and found.groups == 0 and found.roles == {}


def test_bug_17_groups_are_centred_each_on_its_own_mean():
    """Public bug 17: statistics were taken over the batch and not over each prompt."""
    a, _ = adv([0.9, 1.0, 0.0, 0.1], ["p", "p", "q", "q"], [ACT] * 4, list("abcd"))
    np.testing.assert_allclose(a, [-0.05, 0.05, -0.05, 0.05])


def test_roles_of_one_prompt_have_baselines_of_their_own():
    a, found = adv([1.0, 0.0, 0.0, 0.0], ["x"] * 4, [ACT, ACT, REHEARSE, REHEARSE], list("abbc"))
    assert a.tolist() == [0.5, -0.5, 0.0, 0.0]
    assert found.roles[REHEARSE].constant == 1 and found.roles[ACT].constant == 0


# --- rows outside every baseline ------------------------------------------------------------------


def test_bug_14_an_unscored_row_is_outside_the_baseline_with_advantage_zero():
    """Public bug 14: a completion without a score counted as 0, and gained by its siblings' negative
    rewards."""
    a, found = adv([-0.8, -0.2, -0.5, None], ["x"] * 4, [ACT] * 4, list("abcd"))
    np.testing.assert_allclose(a, [-0.3, 0.3, 0.0, 0.0], atol=1e-12)
    assert a[3] == 0.0 and found.unscored == 1 and found.live == 3


def test_padding_rows_change_no_advantage():
    real = [row(1.0, episode="a"), row(0.0, episode="b"), row(0.5, episode="c")]
    padding = [
        row(1.0, episode="a", tokens=2, trained=False),
        row(0.0, group="pad", episode="pad", trained=False),
    ]
    alone, _ = advantages(real, Method())
    padded, found = advantages(real + padding, Method())
    assert [r.advantage for r in padded] == [r.advantage for r in alone] + [0.0, 0.0]
    assert found.untrained == 2 and found.groups == 1 and found.lone == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bug_15_a_reward_that_is_not_finite_stops_the_batch(bad):
    """Public bug 15: one NaN reward made the whole batch NaN, and the run ended as if nothing had
    happened."""
    with pytest.raises(ValueError, match="reward of row 1 is"):
        adv([0.1, bad], ["x", "x"], [ACT, ACT], ["a", "b"])
    with pytest.raises(ValueError, match="reward of row 1 is"):
        adv(np.array([0.1, bad]), np.zeros(2, int), np.zeros(2, int), np.arange(2))


def test_an_episode_in_two_groups_is_an_error():
    with pytest.raises(ValueError, match="two groups"):
        adv([0.1, 0.2], ["x", "y"], [ACT, ACT], ["a", "a"])


def test_columns_of_unequal_length_are_an_error():
    with pytest.raises(ValueError, match="differ in length"):
        adv([0.1, 0.2], ["x"], [ACT, ACT], ["a", "b"])


@pytest.mark.parametrize(
    "preset, expected", [("authors", [1 / 3, 1 / 3, -2 / 3, 1.0]), ("envace", [0.5, 0.5, -0.5, 0.0])]
)
def test_presets_reach_the_rows(preset, expected):
    rewards, _, roles, episodes = VECTOR
    rows = [row(r, role=Role(x), episode=e) for r, x, e in zip(rewards, roles, episodes)]
    done, _ = advantages(rows, PRESETS[preset])
    np.testing.assert_allclose([r.advantage for r in done], expected, atol=1e-15)


def test_integer_ids_and_text_ids_agree_even_when_integers_are_sparse():
    rewards, groups, roles, episodes = (
        [1.0, 0.0, 0.3, 0.4],
        [7, 7, 10**12, 10**12],
        [0, 0, 1, 1],
        [-5, 9, 3, 2],
    )
    as_text = adv(rewards, [str(g) for g in groups], [str(r) for r in roles], [str(e) for e in episodes])[0]
    as_ints = adv(np.array(rewards), np.array(groups), np.array(roles), np.array(episodes))[0]
    np.testing.assert_array_equal(as_text, as_ints)


# --- properties -----------------------------------------------------------------------------------

REWARD = st.one_of(st.none(), st.floats(-1, 1, allow_nan=False, width=32))
# episodes: (group, reward, ACT rows, REHEARSE rows)
BATCH = st.lists(
    st.tuples(st.integers(0, 4), REWARD, st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=24
)
BASELINE = st.sampled_from(["generation", "trajectory"])


def columns(batch):
    flat = [
        (reward, group, role, episode)
        for episode, (group, reward, n_act, n_rehearse) in enumerate(batch)
        for role, n in ((ACT, n_act), (REHEARSE, n_rehearse))
        for _ in range(n)
    ]
    return [list(c) for c in zip(*flat)]


@settings(max_examples=60, deadline=None)
@given(BATCH, BASELINE)
def test_the_members_of_every_role_group_sum_to_zero(batch, baseline):
    rewards, groups, roles, episodes = columns(batch)
    a, _ = adv(rewards, groups, roles, episodes, baseline=baseline)
    sums, seen = {}, set()
    for reward, group, role, episode, value in zip(rewards, groups, roles, episodes, a):
        if reward is not None and (baseline == "generation" or (episode, role) not in seen):
            seen.add((episode, role))
            sums[group, role] = sums.get((group, role), 0.0) + value
    assert all(abs(s) < 1e-9 for s in sums.values())


@settings(max_examples=60, deadline=None)
@given(BATCH, BASELINE, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(batch, baseline, random):
    cols = columns(batch)
    order = list(range(len(cols[0])))
    random.shuffle(order)
    straight, _ = adv(*cols, baseline=baseline)
    shuffled, _ = adv(*[[c[i] for i in order] for c in cols], baseline=baseline)
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(BATCH, BASELINE, st.data())
def test_rows_that_are_not_live_never_shift_the_others(batch, baseline, data):
    cols = columns(batch)
    n = len(cols[0])
    alone, _ = adv(*cols, baseline=baseline)
    copies = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    padded = [c + [c[i] for i in copies] for c in cols]
    unscored = [None] * len(copies)
    as_padding, _ = adv(*padded, baseline=baseline, trained_R=[True] * n + [False] * len(copies))
    as_unscored, _ = adv(padded[0][:n] + unscored, *padded[1:], baseline=baseline)
    for a in (as_padding, as_unscored):
        np.testing.assert_array_equal(a[:n], alone)
        assert not a[n:].any()


@settings(max_examples=30, deadline=None)
@given(BATCH, BASELINE, st.floats(-3, 3))
def test_a_constant_added_to_every_reward_changes_nothing(batch, baseline, shift):
    rewards, *ids = columns(batch)
    moved = [None if r is None else r + shift for r in rewards]
    np.testing.assert_allclose(
        adv(moved, *ids, baseline=baseline)[0], adv(rewards, *ids, baseline=baseline)[0], atol=1e-6
    )
