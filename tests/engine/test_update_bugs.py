"""Public bugs of updates: fillers in the loss, and optimizer steps that follow the number of rows."""

import contextlib
import math
import types

import pytest
import torch
from engine_kit import batch_of, one_row, update
from step_kit import Batch

from envace.types import replace

# --- 5: what stands at masked positions
# -----------------------------------------------------------------------


def streams():
    """Two episodes of growing ACT streams; the tokens between their generations are observations."""
    from envace.learn.sequences import merged

    def one(prompt, response, episode, turn):
        logprobs = [-5.0 - 0.1 * k for k in range(len(response))]
        return one_row(prompt, response, logprobs, episode=episode, turn=turn)

    a = [one([5, 6], [7, 8, 9], "a", 0), one([5, 6, 7, 8, 9, 30, 31], [10, 11], "a", 1)]
    b = [one([15, 16], [17], "b", 0), one([15, 16, 17, 33], [18, 19, 20, 21], "b", 1)]
    return merged(a) + merged(b)


def filled(value):
    """The same streams with `value` at every masked position, as verl's queue gets them from the agent
    loop."""
    from envace.engine.agent_loop import output_of

    found = []
    for stream in streams():
        written = zip(stream.logprobs, stream.loss_mask)
        stream = replace(stream, logprobs=tuple(lp if m else value for lp, m in written))
        found.append(output_of(stream, 1))
    return found


def gradient(engine, monkeypatch, outputs, old=None):
    """(loss, gradient) of one update on these outputs, advantages alternating."""
    seen, step = [], engine.optimizer_step

    def watched():
        seen.append(torch.cat([p.grad.full_tensor().flatten() for p in engine.module.parameters()]))
        return step()

    engine.optimizer.param_groups[0]["lr"] = 0.0  # every update sees the same weights
    masks = [torch.tensor(o.response_mask) for o in outputs]
    data = batch_of(
        [torch.tensor(o.prompt_ids + o.response_ids) for o in outputs],
        [len(o.prompt_ids) for o in outputs],
        masks,
        [torch.where(m.bool(), 0.5 if k else -1.0, 0.0) for k, m in enumerate(masks)],
        old=old or [torch.tensor(o.response_logprobs) for o in outputs],
    )
    with monkeypatch.context() as patched:
        patched.setattr(engine, "optimizer_step", watched)
        _, _, metrics = update(engine, data)
    return sum(map(float, metrics["actor/pg_loss"].values)), seen[0], metrics


@pytest.mark.parametrize("filler", [1.0, math.nan, -6.0])
def test_bug_5_whatever_fills_masked_log_probabilities_loss_and_gradient_are_the_same(
    engine, monkeypatch, filler
):
    """Public bug 5: masked tokens were filled with 1, and a ratio of e^-1 entered the loss."""
    plain = gradient(engine, monkeypatch, filled(0.0))
    loss, grads, metrics = gradient(engine, monkeypatch, filled(filler))
    assert loss == plain[0] and float(plain[1].norm()) > 1e-4
    torch.testing.assert_close(grads, plain[1], rtol=0, atol=0)
    gap = {k: m.aggregate() for k, m in metrics.items() if "seen/" in k}
    assert gap == {k: m.aggregate() for k, m in plain[2].items() if "seen/" in k} and gap["seen/tokens"] == 10


@pytest.mark.parametrize("filler", [1.0, -6.0])
def test_bug_5_a_filler_that_reaches_the_loss_moves_nothing(engine, monkeypatch, filler):
    """The same with the filler in the very batch of the update, past the place where it is taken out."""
    outputs = filled(0.0)
    plain = gradient(engine, monkeypatch, outputs)
    old = [
        torch.where(torch.tensor(o.response_mask).bool(), torch.tensor(o.response_logprobs), filler)
        for o in outputs
    ]
    loss, grads, _ = gradient(engine, monkeypatch, outputs, old)
    assert loss == pytest.approx(plain[0], rel=1e-6)
    torch.testing.assert_close(grads, plain[1], rtol=1e-6, atol=1e-9)


# --- 12: one optimizer step a batch
# ----------------------------------------------------------------------------


def steps_of(trainer, monkeypatch, rows, own_update=True):
    """Optimizer steps that verl's worker takes when a trainer hands it so many rows of two prompts."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import PPOTrainerSync
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine_workers import TrainingWorker

    ids = [torch.arange(5, 12) + k for k in range(rows)]
    masks = [torch.ones(4, dtype=torch.long)] * rows
    data = batch_of(ids, [3] * rows, masks, [torch.ones(4)] * rows)
    batch, taken = Batch([{}] * rows), []
    batch.extra_info = {}

    def train_batch(mini_batch):
        taken.append(len(mini_batch))
        return tu.get_tensordict({}, {"metrics": {"loss": [[1.0]], "mfu": 0.0}})

    worker = types.SimpleNamespace(
        engine=types.SimpleNamespace(
            get_data_parallel_size=lambda: 1,
            get_data_parallel_rank=lambda: 0,
            get_data_parallel_group=lambda: None,
            train_mode=lambda **kwargs: contextlib.nullcontext(),
            is_mp_src_rank_with_outputs=lambda: True,
        ),
        train_batch=train_batch,
        profiler=types.SimpleNamespace(step=lambda: None),
    )

    class Group:
        def update_actor(self, batch):
            tu.assign_non_tensor(data, **batch.extra_info)
            train_mini_batch = TrainingWorker.train_mini_batch
            return getattr(train_mini_batch, "__wrapped__", train_mini_batch)(worker, data)

    actor = {
        "calculate_entropy": False,
        "entropy_coeff": 0.0,
        "use_kl_loss": False,
        "data_loader_seed": 1,
        "shuffle": False,
        "ppo_mini_batch_size": 1,
        "ppo_epochs": 1,
    }
    own = object.__new__(trainer.RolewiseTrainer)
    own.config = OmegaConf.create(
        {"actor_rollout_ref": {"actor": actor, "rollout": {"temperature": 1.0, "n": 2}}}
    )
    own.actor_rollout_wg, own.step_gap = Group(), {}
    queue = types.SimpleNamespace(kv_batch_get=lambda **kwargs: {"response_mask": data["response_mask"]})
    monkeypatch.setattr(trainer, "tq", queue)
    (type(own) if own_update else PPOTrainerSync)._update_actor(own, batch, {})
    return taken


@pytest.mark.parametrize("rows", range(1, 8))
def test_bug_12_a_batch_is_one_optimizer_step_however_many_rows_it_has(one_rank, trainer, monkeypatch, rows):
    """Public bug 12: episodes that fork into 1 to 7 rows changed how many optimizer steps a batch took."""
    assert steps_of(trainer, monkeypatch, rows) == [rows]


def test_bug_12_verls_own_update_would_follow_the_number_of_rows(one_rank, trainer, monkeypatch):
    """What the test above would see without this project's update: a step for every two rows."""
    assert steps_of(trainer, monkeypatch, 6, own_update=False) == [2, 2, 2]
