"""verl's FSDP2 engine, really built, in this process; and the batches that verl's trainer hands to it."""

import dataclasses
import os
from functools import partial
from pathlib import Path

import pytest
import torch

from envace.config import load
from envace.warmstart.training import build_start

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl is imported, which the functions below do

ROOT = Path(__file__).resolve().parents[2]
LENGTHS, PROMPTS, LR, DECAY = [7, 4, 9], [5, 2, 3], 1e-3, 0.01


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A folder with random weights and a tokenizer."""
    base = load(ROOT / "params.yaml")
    tiny = dataclasses.replace(base.policy.tiny, updates=0, tasks=8, hidden=32, layers=1)
    folder = tmp_path_factory.mktemp("policy") / "start"
    build_start(dataclasses.replace(base, policy=dataclasses.replace(base.policy, tiny=tiny)), folder)
    return folder


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("cpu:gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def engine(start, one_rank):
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine.cpu_engine import CpuFsdpEngine

    built = CpuFsdpEngine(
        model_config=HFModelConfig(
            path=str(start),
            use_remove_padding=False,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", use_torch_compile=False, mixed_precision={"param_dtype": "fp32"}
        ),
        optimizer_config=FSDPOptimizerConfig(lr=LR, weight_decay=DECAY, total_training_steps=9),
        checkpoint_config=CheckpointConfig(),
    )
    built.initialize()
    return built


def batch(advantages, **choices):
    """Three rows, one advantage each."""
    ids = [torch.arange(5, 5 + n) + 7 * n for n in LENGTHS]
    ids[0] = ids[2][:7]  # the first row begins the last one
    ones = [torch.ones(n - p, dtype=torch.long) for n, p in zip(LENGTHS, PROMPTS)]
    spread = [torch.full((len(o),), a) for o, a in zip(ones, advantages)]
    return batch_of(ids, PROMPTS, ones, spread, **choices)


def batch_of(ids, prompts, masks, advantages, old=None, **choices):
    """verl's batch of rows: their ids, lengths of their prompts, response masks, token advantages, and the
    log-probabilities of the sampled tokens (-6 where nothing is given)."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    def nested(rows):
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    data = TensorDict(
        {
            "input_ids": nested(ids),
            "position_ids": nested([torch.arange(len(i)) for i in ids]),
            "prompts": nested([i[:p] for i, p in zip(ids, prompts)]),
            "responses": nested([i[p:] for i, p in zip(ids, prompts)]),
            "response_mask": nested(masks),
            "loss_mask": nested(masks),
            "old_log_probs": nested(old or [torch.full((len(m),), -6.0) for m in masks]),
            "advantages": nested(advantages),
        },
        batch_size=len(ids),
    )
    rows = sum(bool(m.any()) for m in masks)
    fixed = {
        "use_remove_padding": False,
        "temperature": 1.0,
        "use_dynamic_bsz": True,
        "global_batch_size": rows,
    }
    tu.assign_non_tensor(
        data, **{**fixed, "calculate_entropy": False, "max_token_len_per_gpu": 64, **choices}
    )
    return data


def update(engine, data, mode="token-mean"):
    """(weights before, weights after, metrics) of one update on the batch."""
    from verl.workers.config import FSDPActorConfig
    from verl.workers.utils.losses import ppo_loss

    actor = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_mini_batch_size=3,
        ppo_micro_batch_size_per_gpu=1,
        use_dynamic_bsz=True,
        clip_ratio=100.0,
        clip_ratio_low=100.0,
        clip_ratio_high=100.0,
        loss_agg_mode=mode,
    )
    before = weights(engine)
    with engine.train_mode():
        out = engine.train_batch(data, loss_function=partial(ppo_loss, actor))
    return before, weights(engine), out["metrics"]


def weights(engine):
    return {k: v.full_tensor().clone() for k, v in engine.module.state_dict().items()}


def one_row(prompt, response, logprobs, *, episode, turn, role=None, advantage=0.0):
    """A training sequence of one generation."""
    from envace.learn.sequences import TrainingRow, TrainingSequence
    from envace.types import Role

    n = len(response)
    row = TrainingRow(
        role=role or Role.ACT,
        group_id="g",
        episode_id=episode,
        turn=turn,
        reward=0.0,
        length=n,
        trained=n,
        advantage=advantage,
    )
    return TrainingSequence(
        prompt_ids=tuple(prompt),
        response_ids=tuple(response),
        loss_mask=(1,) * n,
        logprobs=tuple(logprobs),
        rows=(row,),
    )
