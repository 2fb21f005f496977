"""The weight of a token in the loss, by hand, however the batch is cut."""

from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learn_kit import batch, sequence

from envace.config.method import Method
from envace.learn.advantage import advantages
from envace.learn.metrics import step_metrics
from envace.learn.sequences import merged, token_advantages
from envace.learn.weights import LOSS_AGG_MODE, row_weights, verl_weights


def weights(lengths, scheme, roles=None, episodes=None):
    return row_weights(
        lengths,
        scheme,
        role_weight_R=roles,
        episode_R=list(range(len(lengths))) if episodes is None else episodes,
    )


def test_golden_weights():
    np.testing.assert_allclose(row_weights([1, 3], "token"), [1 / 4, 1 / 4])
    np.testing.assert_allclose(row_weights([1, 3], "generation"), [1 / 2, 1 / 6])
    # episode a: rows of 1 and 3 tokens, episode b: one of 2
    np.testing.assert_allclose(weights([1, 3, 2], "episode", episodes=["a", "a", "b"]), [1 / 8, 1 / 8, 1 / 4])


def test_golden_weights_with_a_role_that_counts_half():
    # two ACT rows of 1 and 3 tokens, a REHEARSE row of 2 that counts half
    lengths, roles, episodes = [1, 3, 2], [1.0, 1.0, 0.5], ["a", "b", "b"]
    np.testing.assert_allclose(row_weights(lengths, "token", role_weight_R=roles), [1 / 5, 1 / 5, 1 / 10])
    np.testing.assert_allclose(
        row_weights(lengths, "generation", role_weight_R=roles), [1 / 2.5, 1 / 7.5, 0.5 / 5]
    )
    np.testing.assert_allclose(weights(lengths, "episode", roles, episodes), [1 / 2, 1 / 8, 1 / 16])


@pytest.mark.parametrize("scheme", sorted(LOSS_AGG_MODE))
def test_a_role_of_weight_zero_is_a_frozen_one_and_only_the_ratio_counts(scheme):
    lengths, episodes = [2, 4, 3, 5], ["a", "a", "b", "c"]  # episode c holds the silenced role alone
    silenced = weights(lengths, scheme, [1, 0, 1, 0], episodes)
    np.testing.assert_array_equal(silenced, weights([2, 0, 3, 0], scheme, None, episodes))
    np.testing.assert_allclose(
        weights(lengths, scheme, [2, 6, 2, 6], episodes), weights(lengths, scheme, [1, 3, 1, 3], episodes)
    )


def test_bug_13_opposite_rows_of_length_one_and_three():
    """Public bug 13: a token mean taken per micro-batch gave 0.5 for one split and 0 for another."""
    token_sums = np.array([1 * 1.0, 3 * -1.0])
    assert row_weights([1, 3], "generation") @ token_sums == pytest.approx(0.0)
    assert row_weights([1, 3], "token") @ token_sums == pytest.approx(-0.5)
    assert weights([1, 3], "episode") @ token_sums == pytest.approx(0.0)


def test_bug_11_a_long_episode_weighs_by_its_rows_its_tokens_or_as_any_other_as_asked():
    """Public bug 11: an episode of many steps weighed as often as it had rows, whatever was meant."""
    lengths = np.array([10] * 20 + [100] * 2)  # one of 20 short generations, one of 2 long ones
    episodes = ["short"] * 20 + ["long"] * 2
    share = {s: (weights(lengths, s, episodes=episodes) * lengths)[:20].sum() for s in LOSS_AGG_MODE}
    assert share["generation"] == pytest.approx(20 / 22) and share["token"] == pytest.approx(200 / 400)
    assert share["episode"] == pytest.approx(1 / 2)


def test_bug_10_a_length_is_the_number_of_trained_tokens_and_not_the_span_they_lie_in():
    """Public bug 10: for the mask 1111000 11111 a length of 12 was measured, three tokens of a tool included.

    One merged row of two generations, 4 and 5 tokens with 3 between, and beside it a row of 3 tokens.
    """
    first = sequence((1, 2), (3, 4, 5, 6), 1.0, episode="a")
    second = sequence((1, 2, 3, 4, 5, 6, 90, 91, 92), (7,) * 5, 1.0, episode="a", turn=1)
    other = sequence((1, 2), (8,) * 3, 0.0, episode="b")
    rows, masks = batch(merged([first, second]) + merged([other]))
    assert masks[0].tolist() == [1] * 4 + [0] * 3 + [1] * 5 and len(masks) == 2

    rows, found = advantages(rows, Method())
    assert [r.trained for r in rows] == [4, 5, 3]
    metrics = step_metrics([], rows, found)
    assert (metrics["train/tokens"], metrics["act/tokens"], metrics["act/response_tokens"]) == (
        12.0,
        12.0,
        4.0,
    )
    # the weight of a token is the advantage verl gets over the row's own, times the weight verl gives the
    # token
    for scheme, wanted in {
        "token": [1 / 12] * 3,  # 9 and 3 tokens
        "generation": [1 / 12, 1 / 15, 1 / 9],
        "episode": [1 / 18, 1 / 18, 1 / 6],
    }.items():
        given = verl_weights([m.sum() for m in masks], LOSS_AGG_MODE[scheme])
        values = token_advantages(rows, masks, Method(loss_weight=scheme))
        weights_ = [values[r.sequence][r.start] / r.advantage * given[r.sequence] for r in rows]
        np.testing.assert_allclose(weights_, wanted)
        assert values[0][4:7].tolist() == [0.0] * 3


def test_padding_rows_weigh_nothing_and_change_nothing():
    for scheme in LOSS_AGG_MODE:
        padded = weights([2, 0, 5, 0, 0], scheme, episodes=list("abacc"))
        np.testing.assert_array_equal(padded[[0, 2]], weights([2, 5], scheme, episodes=["a", "a"]))
        assert not padded[[1, 3, 4]].any()


def test_a_batch_without_tokens_weighs_nothing():
    assert not any(weights(lengths, s).any() for s in LOSS_AGG_MODE for lengths in ([], [0, 0]))


def test_columns_that_make_no_sense_are_errors():
    with pytest.raises(ValueError, match="negative"):
        row_weights([1, -1], "token")
    with pytest.raises(ValueError, match="negative"):
        row_weights([1, 1], "token", role_weight_R=[1, -1])
    with pytest.raises(ValueError, match="episode of every row"):
        row_weights([1, 1], "episode")
    with pytest.raises(ValueError, match="differ in length"):
        row_weights([1, 1], "episode", episode_R=["a"])


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 5)),
        min_size=1,
        max_size=30,
    ).filter(lambda rows: any(n for n, _, _ in rows)),
    st.sampled_from(sorted(LOSS_AGG_MODE)),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_total_weight_is_one_and_neither_cut_nor_order_matters(rows, scheme, cut, random):
    w = weights([n for n, _, _ in rows], scheme, [p for _, p, _ in rows], [e for _, _, e in rows])
    sums = np.array([n for n, _, _ in rows], float)  # a loss of 1 on every token
    parts = [w[i : i + cut] @ sums[i : i + cut] for i in range(0, len(w), cut)]
    assert sum(parts) == pytest.approx(1.0)
    order = list(range(len(rows)))
    random.shuffle(order)
    moved = [rows[i] for i in order]
    again = weights([n for n, _, _ in moved], scheme, [p for _, p, _ in moved], [e for _, _, e in moved])
    np.testing.assert_allclose(again, w[order], rtol=1e-12)


def test_every_scheme_names_the_verl_mode_that_carries_it():
    assert set(LOSS_AGG_MODE) == set(get_args(get_type_hints(Method)["loss_weight"]))
    np.testing.assert_allclose(verl_weights([2, 0, 3], "token-mean"), [1 / 5, 0, 1 / 5])
    np.testing.assert_allclose(verl_weights([2, 0, 3], "seq-mean-token-mean"), [1 / 4, 0, 1 / 6])


def test_verls_own_weights_need_no_factor_for_one_row_a_generation():
    for scheme in ("token", "generation"):
        lengths = [3, 1, 7, 5]
        np.testing.assert_array_equal(
            row_weights(lengths, scheme), verl_weights(lengths, LOSS_AGG_MODE[scheme])
        )
