"""Our advantages and weights against verl's own functions on random batches (importing verl takes seconds)."""

import numpy as np
import pytest

from envace.learn.advantage import role_advantages
from envace.learn.weights import LOSS_AGG_MODE, row_weights


@pytest.fixture(scope="module")
def core():
    return pytest.importorskip("verl.trainer.ppo.core_algos")


def batch(seed: int):
    """Rows of 6 prompts x 4 episodes in both roles, some role groups lone, some constant."""
    rng = np.random.default_rng(seed)
    episode_R, role_R = [], []
    for episode in range(24):
        for role, n in ((0, int(rng.integers(1, 7))), (1, int(rng.integers(0, 4)))):
            episode_R += [episode] * n
            role_R += [role] * n
    episode_R, role_R = np.array(episode_R), np.array(role_R)
    reward_E = rng.choice([0.0, 0.25, 0.5, 1.0], 24)
    reward_E[:4] = 0.5  # one prompt without contrast
    mask = np.arange(9) < rng.integers(1, 10, len(episode_R))[:, None]
    return reward_E[episode_R], episode_R // 4, role_R, episode_R, mask


def stock(core, function: str, reward_R, index, mask):
    import torch

    token_rewards = torch.zeros(mask.shape)
    token_rewards[torch.arange(len(mask)), torch.tensor(mask.sum(1) - 1)] = torch.tensor(
        reward_R, dtype=torch.float32
    )
    estimate = getattr(core, function)
    found, _ = estimate(token_rewards, torch.tensor(mask).float(), index=index, norm_adv_by_std_in_grpo=False)
    return found.numpy()


@pytest.mark.parametrize(
    "function", ["compute_grpo_outcome_advantage", "compute_grpo_vectorized_outcome_advantage"]
)
@pytest.mark.parametrize("seed", range(5))
def test_the_generation_baseline_is_stock_grpo_with_the_role_in_the_group_key(core, function, seed):
    reward_R, group_R, role_R, episode_R, mask = batch(seed)
    index = np.array([f"{g}|{r}" for g, r in zip(group_R, role_R)], dtype=object)
    ours, _ = role_advantages(reward_R, group_R, role_R, episode_R, baseline="generation", lone="raw")
    np.testing.assert_allclose(ours[:, None] * mask, stock(core, function, reward_R, index, mask), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_trajectory_baseline_is_stock_grpo_over_one_row_an_episode(core, seed):
    reward_R, group_R, role_R, episode_R, mask = batch(seed)
    last = np.array([np.flatnonzero((episode_R == e) & (role_R == 0))[-1] for e in range(24)])
    stock_E = stock(
        core, "compute_grpo_outcome_advantage", reward_R[last], group_R[last].astype(object), mask[last]
    )
    act = role_R == 0
    ours, _ = role_advantages(reward_R[act], group_R[act], role_R[act], episode_R[act], baseline="trajectory")
    np.testing.assert_allclose(ours, stock_E[:, 0][episode_R[act]], atol=1e-6)


@pytest.mark.parametrize("scheme", ["generation", "token"])
def test_weights_give_the_objective_of_the_verl_mode_they_name(core, scheme):
    import torch

    rng = np.random.default_rng(3)
    lengths = np.array([1, 5, 0, 9, 3])  # one padding row
    mask, loss = np.arange(9) < lengths[:, None], rng.normal(size=(5, 9))
    theirs = core.agg_loss(torch.tensor(loss), torch.tensor(mask).double(), LOSS_AGG_MODE[scheme])
    ours = (row_weights(lengths, scheme)[:, None] * loss * mask).sum()
    assert ours == pytest.approx(float(theirs), rel=1e-6)


def test_the_benchmark_compares_functions_that_agree(core):
    import torch

    from benchmarks.advantage import OURS, check_equal, make_batch, measure, scalar_entries, token_entries

    batch = make_batch(200, 16)
    for entries in (scalar_entries(batch, core, torch), token_entries(batch, core, torch, 16)):
        assert check_equal(entries) < 1e-5
        assert {len(times) for times in measure(entries, 2).values()} == {2}
    with pytest.raises(ValueError, match="nothing to time"):
        check_equal({**entries, OURS: lambda: np.ones((200, 16))})
