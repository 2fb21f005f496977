"""The weight of a token in the loss, by hand, however the batch is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envace.learn.weights import LOSS_AGG_MODE, SCHEMES, row_weights


def test_golden_weights():
    np.testing.assert_allclose(row_weights([1, 3], "token"), [1 / 4, 1 / 4])
    np.testing.assert_allclose(row_weights([1, 3], "generation"), [1 / 2, 1 / 6])


def test_opposite_rows_of_length_one_and_three():
    token_sums = np.array([1 * 1.0, 3 * -1.0])
    assert row_weights([1, 3], "generation") @ token_sums == pytest.approx(0.0)
    assert row_weights([1, 3], "token") @ token_sums == pytest.approx(-0.5)


def test_a_long_episode_weighs_by_its_rows_or_by_its_tokens_as_asked():
    lengths = np.array([10] * 20 + [100] * 2)  # one of 20 short generations, one of 2 long ones
    share = {s: (row_weights(lengths, s) * lengths)[:20].sum() for s in SCHEMES}
    assert share["generation"] == pytest.approx(20 / 22) and share["token"] == pytest.approx(200 / 400)


def test_padding_rows_weigh_nothing_and_change_nothing():
    for scheme in SCHEMES:
        padded = row_weights([2, 0, 5, 0, 0], scheme)
        np.testing.assert_array_equal(padded[[0, 2]], row_weights([2, 5], scheme))
        assert not padded[[1, 3, 4]].any()


def test_a_batch_without_tokens_weighs_nothing():
    assert not any(row_weights(lengths, s).any() for s in SCHEMES for lengths in ([], [0, 0]))


def test_a_negative_length_is_an_error():
    with pytest.raises(ValueError, match="negative"):
        row_weights([1, -1], "token")


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any),
    st.sampled_from(sorted(SCHEMES)),
    st.integers(1, 7),
)
def test_total_weight_is_one_and_the_cut_into_micro_batches_does_not_matter(lengths, scheme, cut):
    w = row_weights(lengths, scheme)
    sums = np.array(lengths, float)  # a loss of 1 on every token
    assert w @ sums == pytest.approx(1.0)
    parts = [w[i : i + cut] @ sums[i : i + cut] for i in range(0, len(w), cut)]
    assert sum(parts) == pytest.approx(1.0)


def test_every_scheme_names_its_verl_mode():
    assert set(LOSS_AGG_MODE) == set(SCHEMES)
