"""params.yaml -> verl's Hydra overrides and environment: the only place that names verl's keys.

Flows in: `Params`, the arm, file locations. Flows out: a list of `key=value` strings for
`python -m verl.trainer.main_ppo`, and the environment its processes need.
Invariant: the same trainer, agent loop and configuration tree on every device; CPU and GPU differ only in the
values of `_cpu` and `_gpu`. One optimizer update a step whatever the number of rows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from envace.config import EngineParams, Params
from envace.config.method import Method
from envace.learn.weights import LOSS_AGG_MODE

PLUGIN = "envace.engine.plugin"
TRAINER = "envace_sync"
AGENT_LOOP = "envace_episode"
ESTIMATOR = "rolewise_grpo"
ROOT = Path(__file__).resolve().parents[2]

ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))
Value = str | int | float | bool | list[str] | None
"""What verl's configuration holds under a key."""


def verl_overrides(
    params: Params, arm: str, seed: int, *, tasks_file: str, start: str, work: str
) -> list[str]:
    """Every value verl is told, in the order: method, data, model, optimizer, rollout, trainer, device."""
    method = params.resolved_method(arm)
    values = _method(method, params) | _data(params, tasks_file, seed) | _model_and_optimizer(params, start)
    values |= _rollout(params, seed) | _trainer(params, arm, seed, work)
    values |= _cpu(params) if params.engine.device == "cpu" else _gpu(params)
    return [f"{key}={_text(value)}" for key, value in values.items()]


def trainer_env(params: Params, run_file: Path, work: Path) -> dict[str, str]:
    """Environment of the verl subprocess and, through Ray, of all its workers."""
    env = {
        "ENVACE_RUN_FILE": str(run_file),
        "ENVACE_WORK": str(work),  # marks every process of this run
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "true",
        "PYTHONUNBUFFERED": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONWARNINGS": "ignore",
        "HYDRA_FULL_ERROR": "1",
    }
    if params.engine.device == "cpu":
        # Ray's niceness of 15 would let anything else on the machine starve the training
        env |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    if params.policy.kind != "hub":
        env["HF_HUB_OFFLINE"] = "1"
    return env


def interpreter(params: Params) -> str:
    """The Python of the trainer environment."""
    return params.engine.python or sys.executable


def _method(method: Method, params: Params) -> dict[str, Value]:
    return {
        "algorithm.adv_estimator": ESTIMATOR,
        "algorithm.norm_adv_by_std_in_grpo": False,
        "algorithm.use_kl_in_reward": False,
        f"{ACTOR}.use_kl_loss": method.kl > 0,
        f"{ACTOR}.kl_loss_coef": method.kl,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.loss_agg_mode": LOSS_AGG_MODE[method.loss_weight],
        f"{ACTOR}.entropy_coeff": params.train.entropy,
        f"{ACTOR}.clip_ratio": params.train.clip_ratio,
    }


def _data(params: Params, tasks_file: str, seed: int) -> dict[str, Value]:
    return {
        "data.train_files": tasks_file,
        "data.val_files": tasks_file,
        "data.custom_cls.path": "pkg://envace.engine.dataset",
        "data.custom_cls.name": "TaskDataset",
        "data.train_batch_size": params.train.prompts,
        # only the sum of both bounds a row (max_model_len): ACT's prompt may pass the first under
        # context_stop: shrink
        "data.max_prompt_length": params.rollout.prompt_tokens,
        "data.max_response_length": params.rollout.response_tokens,
        "data.dataloader_num_workers": 0,
        "data.shuffle": False,  # the order of prompts is a function of seed and step, see dataset.py
        "data.seed": seed,
        "data.return_raw_chat": True,
    }


def _model_and_optimizer(params: Params, start: str) -> dict[str, Value]:
    train = params.train
    model = {
        f"{MODEL}.path": start,
        f"{MODEL}.trust_remote_code": False,
        f"{MODEL}.enable_gradient_checkpointing": params.engine.gradient_checkpointing,
    }
    strategy = {f"{part}{inner}.strategy": "fsdp2" for part in (ACTOR, REF) for inner in ("", ".fsdp_config")}
    return (
        model
        | strategy
        | {
            f"{ACTOR}.optim.lr": train.lr,
            f"{ACTOR}.optim.lr_warmup_steps": train.warmup_steps,
            f"{ACTOR}.optim.lr_scheduler_type": train.lr_schedule,
            f"{ACTOR}.optim.min_lr_ratio": 0.0,
            f"{ACTOR}.optim.weight_decay": train.weight_decay,
            f"{ACTOR}.optim.clip_grad": train.grad_clip,
            f"{ACTOR}.ppo_epochs": 1,
            f"{ACTOR}.ppo_mini_batch_size": train.prompts,
            f"{ACTOR}.use_dynamic_bsz": True,  # row counts vary from step to step
            f"{ACTOR}.ppo_max_token_len_per_gpu": params.engine.max_tokens_per_gpu,
            f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra"],
        }
    )


def _rollout(params: Params, seed: int) -> dict[str, Value]:
    rollout = params.rollout
    return {
        f"{ROLLOUT}.name": params.engine.rollout,
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.n": params.train.group,
        f"{ROLLOUT}.temperature": rollout.temperature,
        f"{ROLLOUT}.top_p": rollout.top_p,
        f"{ROLLOUT}.seed": seed,
        f"{ROLLOUT}.calculate_log_probs": True,  # the rollout-versus-trainer gap is logged each step
        f"{ROLLOUT}.tensor_model_parallel_size": params.engine.tensor_parallel,
        f"{ROLLOUT}.max_model_len": rollout.context,
        f"{ROLLOUT}.max_num_seqs": params.engine.concurrency,
        f"{ROLLOUT}.agent.num_workers": params.engine.workers,
        f"{ROLLOUT}.agent.default_agent_loop": AGENT_LOOP,
        f"{ROLLOUT}.multi_turn.max_assistant_turns": rollout.max_steps,
        "+data.apply_chat_template_kwargs.enable_thinking": rollout.enable_thinking,
        "reward.num_workers": 1,
    }


def _trainer(params: Params, arm: str, seed: int, work: str) -> dict[str, Value]:
    return {
        "trainer.v1.trainer_mode": TRAINER,
        "trainer.project_name": params.mlflow.experiment,
        "trainer.experiment_name": f"{arm}-{seed}",
        "trainer.logger": ["console"],  # MLflow is told by the launcher, whose client survives an outage
        "trainer.nnodes": params.engine.nodes,
        "trainer.n_gpus_per_node": params.engine.gpus_per_node,
        "trainer.total_epochs": 1_000_000,  # steps end a run, never epochs
        "trainer.total_training_steps": params.train.steps,
        "trainer.save_freq": params.train.save_every,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": f"{work}/checkpoints",
        "trainer.checkpoint_callback_class": "envace.engine.checkpoints.Keeper",
        "hydra.run.dir": f"{work}/hydra",
        "hydra.output_subdir": None,
    }


def _cpu(params: Params) -> dict[str, Value]:
    engine = params.engine
    parts = [ACTOR, f"{ACTOR}.fsdp_config", REF, f"{REF}.fsdp_config"]
    return {f"{part}.use_torch_compile": False for part in parts} | {
        "trainer.device": "cpu",
        f"{MODEL}.use_remove_padding": False,
        f"+{MODEL}.override_config.attn_implementation": "sdpa",
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
        f"+{REF}.fsdp_config.mixed_precision.param_dtype": "fp32",
        # The hf server samples from the trainer's very weights in the same precision, and one update a step
        # means
        # that the old policy is the sampling one: its log-probabilities need no second forward pass. That
        # they
        # agree is measured in each update (gap/probs_max).
        "algorithm.rollout_correction.bypass_mode": True,
        f"{ROLLOUT}.dtype": "float32",
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "transfer_queue.backend.SimpleStorage.total_storage_size": 100_000,
        **(_ray(engine.ray_address) or _own_ray(engine)),
    }


def _own_ray(engine: EngineParams) -> dict[str, Value]:
    """Ray counts its workers in GPUs and wants several CPUs for a bundle: both are bookkeeping here."""
    return {
        "+ray_kwargs.ray_init.num_gpus": engine.gpus_per_node,
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init.object_store_memory": engine.object_store_mb * 1_000_000,
    }


def _gpu(params: Params) -> dict[str, Value]:
    engine = params.engine
    offload = {f"{ACTOR}.fsdp_config.{what}_offload": engine.offload for what in ("param", "optimizer")}
    return offload | {
        "trainer.device": "cuda",
        f"{MODEL}.use_remove_padding": True,
        f"{REF}.fsdp_config.param_offload": engine.offload,
        f"{ROLLOUT}.gpu_memory_utilization": engine.gpu_memory,
        f"{ROLLOUT}.max_num_batched_tokens": max(8192, params.rollout.context),
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 2048,
        **_ray(engine.ray_address),
    }


def _ray(address: str) -> dict[str, Value]:
    return {"+ray_kwargs.ray_init.address": address} if address else {}


def _text(value: Value) -> str:
    """A value in Hydra's override grammar: text is quoted, so that no path or name is parsed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return "[" + ",".join(_text(v) for v in value) + "]"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
