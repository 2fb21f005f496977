"""Our advantages and weights against verl's own functions on random batches (importing verl takes
seconds)."""

import numpy as np
import pytest
from learn_kit import batch as batch_of
from learn_kit import joined, sequence

from envace.config.method import Method
from envace.learn.advantage import role_advantages
from envace.learn.sequences import TrainingSequence, token_advantages
from envace.learn.weights import LOSS_AGG_MODE, row_weights
from envace.types import Role


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


# --- loss weights ---------------------------------------------------------------------------------

VERLS_OWN = {"generation": "seq-mean-token-mean", "token": "token-mean"}


@pytest.mark.parametrize("scheme", VERLS_OWN)
def test_weights_give_the_objective_of_the_verl_mode_they_name(core, scheme):
    import torch

    rng = np.random.default_rng(3)
    lengths = np.array([1, 5, 0, 9, 3])  # one padding row
    mask, loss = np.arange(9) < lengths[:, None], rng.normal(size=(5, 9))
    theirs = core.agg_loss(torch.tensor(loss), torch.tensor(mask).double(), VERLS_OWN[scheme])
    ours = (row_weights(lengths, scheme)[:, None] * loss * mask).sum()
    assert ours == pytest.approx(float(theirs), rel=1e-6)


def scripted(seed: int) -> list[TrainingSequence]:
    """Generations of 5 episodes of growing ACT streams and rehearsals, with advantages of both signs."""
    rng = np.random.default_rng(seed)
    found = []
    for episode in range(5):
        prompt = (1, 2)
        for turn in range(int(rng.integers(1, 4))):
            for role in (Role.ACT, Role.REHEARSE):
                out = tuple(int(i) for i in rng.integers(3, 99, int(rng.integers(1, 5))))
                shown, adv = prompt if role is Role.ACT else (7,), float(rng.normal())
                found.append(
                    sequence(
                        shown, out, 0.0, role, logprobs=False, episode=str(episode), turn=turn, advantage=adv
                    )
                )
                prompt = prompt + out + (5,) * turn if role is Role.ACT else prompt
    return found


def in_sequences(scripted, how, padding=0):
    """(rows, masks) of the batch, rows with their advantages; padding has none."""
    return batch_of(joined(scripted, how), padding, padded=3)


def verl_loss(core, values, masks, mode: str, order=None, cut: int = 99):
    """verl's clipped loss over micro-batches of `cut` streams, and the gradient at each token's
    log-probability, sorted: merging moves tokens, but changes no gradient."""
    import torch
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_mini_batch_size=3,
        ppo_micro_batch_size_per_gpu=1,
        use_dynamic_bsz=True,
    )
    config.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=sum(int(m.sum()) for m in masks),
        global_batch_size=sum(int(m.any()) for m in masks),
    )
    order, width = order or list(range(len(masks))), max(map(len, masks))

    def padded(rows):
        return torch.tensor(np.stack([np.pad(r.astype(np.float64), (0, width - len(r))) for r in rows]))

    total, gradients = 0.0, []
    for at in range(0, len(order), cut):
        part = order[at : at + cut]
        value, mask = padded([values[s] for s in part]), padded([masks[s] for s in part])
        logp = torch.zeros_like(mask, requires_grad=True)
        old = torch.full_like(mask, -0.3)  # the ratio is 1.35: clipped above 1.2 for positive advantages
        loss, _ = core.compute_policy_loss_vanilla(old, logp, value, mask, mode, config)
        loss.backward()
        total += float(loss.detach())
        gradients.append(logp.grad[mask.bool()])
    return total, np.sort(torch.cat(gradients).numpy())


def same(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], rel=1e-7, abs=1e-12)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("how, padding, cut", [("generation", 0, 99), ("merged", 0, 99), ("merged", 3, 2)])
@pytest.mark.parametrize("scheme", VERLS_OWN)
def test_the_clipped_loss_is_that_of_verls_own_mode_on_one_row_a_generation(core, scheme, how, padding, cut):
    rows, masks = in_sequences(scripted(1), "generation")
    theirs = verl_loss(core, [r.advantage * m for r, m in zip(rows, masks)], masks, VERLS_OWN[scheme])
    rows, masks = in_sequences(scripted(1), how, padding)
    values = token_advantages(rows, masks, Method(loss_weight=scheme, rows=how))
    order = list(np.random.default_rng(5).permutation(len(masks)))
    same(verl_loss(core, values, masks, LOSS_AGG_MODE[scheme], order, cut), theirs)


@pytest.mark.parametrize("how", ["generation", "merged"])
@pytest.mark.parametrize("roles", [(1.0, 1.0), (1.0, 0.25), (0.0, 2.0)])
@pytest.mark.parametrize("scheme", ["generation", "token", "episode"])
def test_every_weighting_is_a_plain_sum_of_token_losses_under_explicit_weights(core, scheme, roles, how):
    rows, masks = in_sequences(scripted(2), "generation")
    weight_R = row_weights(
        [m.sum() for m in masks],
        scheme,
        role_weight_R=[roles[r.role is Role.REHEARSE] for r in rows],
        episode_R=[r.episode_id for r in rows],
    )
    plain = [r.advantage * w * m for r, w, m in zip(rows, weight_R, masks)]
    theirs = verl_loss(core, plain, masks, "token-sum")
    rows, masks = in_sequences(scripted(2), how, padding=1)
    values = token_advantages(rows, masks, Method(loss_weight=scheme, role_weights=roles, rows=how))
    same(verl_loss(core, values, masks, LOSS_AGG_MODE[scheme], cut=3), theirs)


def test_the_benchmark_compares_functions_that_agree(core):
    from benchmarks.advantage import OURS, check_equal, entries, make_batch

    found = entries(make_batch(200, 16), core, 16)
    assert check_equal(found) < 1e-5
    with pytest.raises(ValueError, match="nothing to time"):
        check_equal({**found, OURS: lambda: np.ones((200, 16))})
