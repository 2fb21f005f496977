"""params.yaml -> verl's Hydra overrides and environment: the only place that names verl's keys.

Invariant: the same trainer, agent loop and configuration tree on every device; CPU and GPU differ only in the
values of `_cpu` and `_gpu`. One optimizer update a step whatever the number of rows. A run without
engine.ray_address starts a Ray of its own, whatever the shell says, and listens on loopback alone.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from envace.config import Params
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
    params: Params, arm: str, seed: int, *, tasks_file: str, start: str, work: str, ray_dir: str = ""
) -> list[str]:
    """Every value verl is told, in the order: method, data, model, optimizer, rollout, trainer, device, Ray.

    ray_dir: where a Ray of our own keeps its sockets and logs.
    """
    values = _method_and_data(params, arm, seed, tasks_file) | _model_and_optimizer(params, start)
    values |= _rollout(params, seed) | _trainer(params, arm, seed, work)
    values |= (_cpu if params.engine.device == "cpu" else _gpu)(params) | _ray(params, ray_dir)
    return [f"{key}={_text(value)}" for key, value in values.items()]


def trainer_env(
    params: Params, run_file: Path, work: Path, shell: Mapping[str, str] = os.environ, ray_dir: str = ""
) -> dict[str, str]:
    """Environment of the verl subprocess and, through Ray, of all its workers, beside the rest of `shell`.

    A local Ray takes no setting of the shell's; its token is made for this run and written nowhere.
    """
    engine = params.engine
    env = {
        "ENVACE_RUN_FILE": str(run_file),
        "ENVACE_WORK": str(work),  # marks every process of this run
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [shell.get("PYTHONPATH")])]),
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
    if engine.device == "cpu":
        # Ray's niceness of 15 would let anything else on the machine starve the training
        env |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    if params.policy.kind != "hub":
        env["HF_HUB_OFFLINE"] = "1"
    if engine.ray_address:
        return {**shell, **env}
    env |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # without its cluster mode every process of Ray takes 127.0.0.1 for the machine's address, and
        # TransferQueue and vLLM ask Ray
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "DIST_INIT_METHOD": f"file://{ray_dir}/ranks",  # torch's own store would listen on every address
    }
    return {name: value for name, value in shell.items() if not name.startswith("RAY_")} | env


def interpreter(params: Params) -> str:
    """The Python of the trainer environment."""
    return params.engine.python or sys.executable


def _method_and_data(params: Params, arm: str, seed: int, tasks_file: str) -> dict[str, Value]:
    method, train = params.resolved_method(arm), params.train
    return {
        "algorithm.adv_estimator": ESTIMATOR,
        "algorithm.norm_adv_by_std_in_grpo": False,
        "algorithm.use_kl_in_reward": False,
        f"{ACTOR}.use_kl_loss": method.kl > 0,
        f"{ACTOR}.kl_loss_coef": method.kl,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.loss_agg_mode": LOSS_AGG_MODE[method.loss_weight],
        f"{ACTOR}.entropy_coeff": train.entropy,
        **{f"{ACTOR}.clip_ratio{bound}": train.clip_ratio for bound in ("", "_low", "_high")},
        "data.train_files": tasks_file,
        "data.val_files": tasks_file,
        "data.custom_cls.path": "pkg://envace.engine.dataset",
        "data.custom_cls.name": "TaskDataset",
        "data.train_batch_size": train.prompts,
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
    return {
        f"{MODEL}.path": start,
        f"{MODEL}.trust_remote_code": False,
        f"{MODEL}.enable_gradient_checkpointing": params.engine.gradient_checkpointing,
        **{f"{part}{inner}.strategy": "fsdp2" for part in (ACTOR, REF) for inner in ("", ".fsdp_config")},
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
        "trainer.v1.sampler.custom_sampler.path": "pkg://envace.engine.watched_queue",
        "trainer.v1.sampler.custom_sampler.name": "WatchedQueue",
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
    parts = [ACTOR, f"{ACTOR}.fsdp_config", REF, f"{REF}.fsdp_config"]
    return {f"{part}.use_torch_compile": False for part in parts} | {
        "trainer.device": "cpu",
        f"{MODEL}.use_remove_padding": False,
        f"+{MODEL}.override_config.attn_implementation": "sdpa",
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
        f"+{REF}.fsdp_config.mixed_precision.param_dtype": "fp32",
        # The hf server samples from the trainer's very weights in the same precision, and one update a step
        # means that the old policy is the sampling one: its log-probabilities need no second forward pass.
        # That they agree is measured in each update (gap/probs_max).
        "algorithm.rollout_correction.bypass_mode": True,
        f"{ROLLOUT}.dtype": "float32",
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "transfer_queue.backend.SimpleStorage.total_storage_size": 100_000,
    }


def _gpu(params: Params) -> dict[str, Value]:
    engine = params.engine
    return {
        **{f"{ACTOR}.fsdp_config.{what}_offload": engine.offload for what in ("param", "optimizer")},
        "trainer.device": "cuda",
        f"{MODEL}.use_remove_padding": True,
        f"{REF}.fsdp_config.param_offload": engine.offload,
        f"{ROLLOUT}.gpu_memory_utilization": engine.gpu_memory,
        f"{ROLLOUT}.max_num_batched_tokens": max(8192, params.rollout.context),
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 2048,
    }


def _ray(params: Params, ray_dir: str) -> dict[str, Value]:
    engine, head = params.engine, "ray_kwargs.ray_init"
    if engine.ray_address:
        return {f"+{head}.address": engine.ray_address}
    own: dict[str, Value] = {
        f"+{head}.address": "local",
        f"+{head}._node_ip_address": "127.0.0.1",
        f"+{head}.include_dashboard": False,
        f"+{head}._temp_dir": ray_dir,
    }
    if engine.device == "cpu":  # Ray counts workers in GPUs, several CPUs for each: both are bookkeeping here
        own |= {f"+{head}.num_gpus": engine.gpus_per_node, f"{head}.num_cpus": 16}
        own[f"+{head}.object_store_memory"] = engine.object_store_mb * 1_000_000
    return own


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
