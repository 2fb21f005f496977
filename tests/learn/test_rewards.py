"""What is trained on, beside what was judged: hand-made batches."""

import numpy as np
import pytest
import torch

from envace.learn.advantage import role_advantages
from envace.learn.rewards import trained_rewards

JUDGED = {"a": 1.0, "b": 0.0, "c": None, "d": 0.5}
ROWS, EPISODES = [1.0, 0.9, 0.0, None, 0.5], ["a", "a", "b", "c", "d"]  # the second row carries a penalty


def trained(scheme: str, seed: int = 1, step: int = 1, judged=JUDGED, rows=ROWS, episodes=EPISODES):
    return trained_rewards(rows, episodes, judged, scheme=scheme, seed=seed, step=step)


def test_judged_rewards_pass_unchanged_penalties_included():
    assert trained("judged") == ROWS


def test_zero_is_zero_for_every_scored_row_and_unscored_stays_unscored():
    assert trained("zero") == [0.0, 0.0, 0.0, None, 0.0]


def test_shuffled_deals_the_same_rewards_among_scored_episodes_and_all_rows_of_an_episode_share_one():
    for step in range(20):
        a, a2, b, c, d = trained("shuffled", step=step)
        assert a == a2 and c is None and sorted([a, b, d]) == [0.0, 0.5, 1.0]


def test_shuffling_depends_on_seed_and_step_and_never_on_the_order_of_arrival():
    judged = {f"e{k}": float(k) for k in range(32)}
    args = {"judged": judged, "rows": list(judged.values()), "episodes": list(judged)}
    first = trained("shuffled", 3, 7, **args)
    turned = {**args, "judged": dict(reversed(judged.items()))}
    assert trained("shuffled", 3, 7, **turned) == first
    assert trained("shuffled", 3, 8, **args) != first != trained("shuffled", 4, 7, **args)
    assert abs(np.corrcoef(first, args["rows"])[0, 1]) < 0.5


def test_an_unknown_scheme_or_episode_is_an_error():
    with pytest.raises(KeyError):
        trained("zeros")
    with pytest.raises(KeyError):
        trained("zero", rows=[1.0], episodes=["x"])


def test_with_zero_rewards_weight_decay_is_all_that_moves_a_weight():
    adv, _ = role_advantages(trained("zero"), list("ggggg"), ["act"] * 5, EPISODES)
    assert (adv == 0).all()
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        (weight.sum() * float(adv[0])).backward()
        optimizer.step()
    assert weight.tolist() == pytest.approx([0.999**2, -2 * 0.999**2], abs=1e-15)
