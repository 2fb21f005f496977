"""What an update does to the weights on a CPU, in verl's own engine."""

import pytest
import torch
from engine_kit import DECAY, LR, batch, batch_of, one_row, update


def test_zero_rewards_leave_weight_decay_as_the_only_change(engine):
    before, after, metrics = update(engine, batch([0.0, 0.0, 0.0], skip_unmoved=True))
    assert metrics["grad_norm"] == 0.0
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight * (1 - LR * DECAY), rtol=0, atol=1e-7)


@pytest.mark.parametrize("advantages", [[1.0, 0.0, -1.0], [0.5, -0.5, 0.25]])
def test_the_gradient_norm_is_that_of_verls_own_micro_batches(engine, advantages, monkeypatch):
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.engine.utils import prepare_micro_batches

    engine.optimizer.param_groups[0]["lr"] = 0.0  # both updates see the same weights
    _, _, ours = update(engine, batch(advantages, skip_unmoved=True))
    monkeypatch.setattr(transformer_impl, "prepare_micro_batches", prepare_micro_batches)
    monkeypatch.setattr(
        type(engine), "prepare_model_inputs", transformer_impl.FSDPEngineWithLMHead.prepare_model_inputs
    )
    monkeypatch.setattr(
        type(engine), "prepare_model_outputs", transformer_impl.FSDPEngineWithLMHead.prepare_model_outputs
    )
    monkeypatch.setattr(type(engine), "forward_step", transformer_impl.FSDPEngineWithLMHead.forward_step)
    _, _, theirs = update(engine, batch(advantages))
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4) and theirs["grad_norm"] > 1e-4


# --- merged rows
# ----------------------------------------------------------------------------------------------


def played():
    """Two episodes of growing ACT streams and rehearsals, with the advantages of their rows."""
    from envace.types import Role

    def row(prompt, response, role, episode, turn, advantage):
        logprobs = (-6.0,) * len(response)
        return one_row(prompt, response, logprobs, role=role, episode=episode, turn=turn, advantage=advantage)

    act, rehearse = Role.ACT, Role.REHEARSE
    return [
        row([5, 6], [7, 8, 9], act, "a", 0, 0.5),
        row([40, 41, 42], [43, 44], rehearse, "a", 0, -0.25),
        row([5, 6, 7, 8, 9, 30, 31], [10, 11], act, "a", 1, 0.25),
        row([5, 6, 7, 8, 9, 30, 31, 10, 11, 32], [12], act, "a", 2, 0.0),
        row([15, 16], [17], act, "b", 0, -0.5),
        row([15, 16, 17, 33], [18, 19, 20, 21], act, "b", 1, -1.0),
    ]


def update_batch(generations, method):
    """What the trainer hands to the engine for these generations."""
    from envace.learn.sequences import JOINS, batch_rows, token_advantages

    join = JOINS[method.rows]
    found = [s for e in "ab" for s in join([s for s in generations if s.rows[0].episode_id == e])]
    masks = [torch.tensor(s.loss_mask) for s in found]
    seen = [m.numpy() for m in masks]
    values = token_advantages(batch_rows([s.rows for s in found], seen, [True] * len(seen)), seen, method)
    return batch_of(
        [torch.tensor(s.prompt_ids + s.response_ids) for s in found],
        [len(s.prompt_ids) for s in found],
        masks,
        [torch.from_numpy(v).float() for v in values],
        skip_unmoved=True,
    )


@pytest.mark.parametrize("role_weights", [(1.0, 1.0), (1.0, 0.25)])
@pytest.mark.parametrize("loss_weight", ["token", "generation", "episode"])
def test_merged_rows_have_the_gradient_of_rows_of_their_own(engine, loss_weight, role_weights, monkeypatch):
    from envace.config.method import Method
    from envace.learn.weights import LOSS_AGG_MODE

    engine.optimizer.param_groups[0]["lr"] = 0.0  # both updates see the same weights
    gradients, step = [], engine.optimizer_step

    def watched():
        gradients.append(torch.cat([p.grad.full_tensor().flatten() for p in engine.module.parameters()]))
        return step()

    monkeypatch.setattr(engine, "optimizer_step", watched)
    losses = []
    for how in ("generation", "merged"):
        method = Method(loss_weight=loss_weight, role_weights=role_weights, rows=how)
        _, _, metrics = update(engine, update_batch(played(), method), LOSS_AGG_MODE[loss_weight])
        losses.append(sum(map(float, metrics["actor/pg_loss"].values)))
    own, merged = gradients
    assert float((merged - own).norm()) <= 1e-5 * float(own.norm()) and float(own.norm()) > 1e-4
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
