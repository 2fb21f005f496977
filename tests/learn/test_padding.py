"""Which rows stand in a batch once more."""

import pytest

from envace.learn.sequences import COPIED_TO, copies


@pytest.mark.parametrize(
    "n, ranks, missing", [(14, 1, 2), (16, 1, 0), (1, 1, 7), (17, 2, 15), (0, 1, 0), (128, 16, 0)]
)
def test_copies_fill_up_to_eight_rows_a_rank(n, ranks, missing):
    drawn = copies("duplicates", n, ranks, 1, 1)
    assert len(drawn) == missing and (n + missing) % (ranks * COPIED_TO) == 0
    assert all(0 <= i < n for i in drawn)
    assert n < missing or len(set(drawn)) == len(drawn)  # twice only where there are too few to draw from


def test_masked_rows_are_no_copies():
    assert copies("masked", 14, 1, 1, 1) == []


def test_seed_and_step_choose():
    assert copies("duplicates", 14, 1, 1, 1) == [
        4,
        6,
    ]  # as the case of tests/rollout/params_cases.py counts on
    drawn = {tuple(copies("duplicates", 1001, 1, seed, step)) for seed in (1, 2) for step in (1, 2)}
    assert len(drawn) == 4
