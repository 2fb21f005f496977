"""params.yaml -> verl: the paper's values arrive, on CPU and GPU, and verl's own validation accepts them."""

from pathlib import Path

import pytest

from envace.config import load, parse
from envace.engine.overrides import trainer_env, verl_overrides
from envace.errors import ParamsError
from envace.types import replace

ROOT = Path(__file__).resolve().parents[2]


def compose(size: str, arm: str = "envace", **train):
    from hydra import compose, initialize_config_module

    params = load(ROOT / f"sizes/{size}.yaml")
    params = replace(params, train=replace(params.train, **train))
    paths = {"tasks_file": "/data/it's.parquet", "start": "/models/start", "work": "/work dir"}
    overrides = verl_overrides(params, arm, 1, **paths, ray_dir="/tmp/r")
    with initialize_config_module("verl.trainer.config", version_base=None):
        return params, compose("ppo_trainer", overrides=[o for o in overrides if not o.startswith("hydra.")])


@pytest.mark.parametrize("size", ["laptop", "study", "gpu1", "paper"])
def test_every_size_passes_verls_own_validation(size, monkeypatch):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    _, config = compose(size)
    assert not need_critic(config)
    config.actor_rollout_ref.model.path = str(ROOT)  # validation looks at the configuration, not at weights
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=False)


def test_paper_size_is_the_papers_setting():
    params, c = compose("paper")
    actor, rollout = c.actor_rollout_ref.actor, c.actor_rollout_ref.rollout
    assert actor.optim.lr == 1e-6 and actor.entropy_coeff == 0
    assert c.trainer.total_training_steps == 470 and c.data.train_batch_size == 16 and rollout.n == 4
    assert actor.use_kl_loss and actor.kl_loss_coef == 1e-4
    assert (
        c.data.max_prompt_length == 12288
        and c.data.max_response_length == 8192
        and rollout.max_model_len == 20480
    )
    assert rollout.multi_turn.max_assistant_turns == 30 == params.rollout.max_steps
    assert not c.algorithm.norm_adv_by_std_in_grpo and actor.loss_agg_mode == "seq-mean-token-mean"
    assert c.trainer.nnodes == 2 and c.trainer.n_gpus_per_node == 8 and rollout.name == "vllm"
    assert rollout.temperature == 1.0 and rollout.top_p == 1.0
    judge = params.judge
    assert (judge.model, judge.temperature, judge.top_p, judge.max_tokens) == (
        "Qwen/Qwen3-30B-A3B",
        0.6,
        0.8,
        6000,
    )
    assert (judge.timeout_s, judge.attempts, judge.concurrency) == (120, 5, 500)


def test_one_configuration_tree_on_cpu_and_gpu():
    cpu, gpu = compose("laptop")[1], compose("gpu1")[1]
    for c in (cpu, gpu):
        assert c.trainer.v1.trainer_mode == "envace_sync"
        assert c.actor_rollout_ref.rollout.agent.default_agent_loop == "envace_episode"
        assert c.algorithm.adv_estimator == "rolewise_grpo"
    assert (cpu.trainer.device, gpu.trainer.device) == ("cpu", "cuda")


def test_log_probabilities_are_computed_once_where_the_server_samples_from_the_same_weights():
    cpu, gpu = compose("laptop")[1], compose("gpu1")[1]
    assert cpu.algorithm.rollout_correction.bypass_mode and not gpu.algorithm.rollout_correction.bypass_mode


def test_the_clip_ratio_acts_on_both_sides():
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(compose("laptop", clip_ratio=0.05)[1].actor_rollout_ref.actor)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.05, 0.05)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [({"rollout": {"top_p": 0.9}}, "rollout.top_p"), ({"engine": {"nodes": 2}}, "engine.ray_address")],
)
def test_what_would_train_wrongly_is_refused_at_the_check(wrong, names):
    with pytest.raises(ParamsError, match=names):
        parse({"policy": {"kind": "tiny"}, **wrong})


def test_a_ray_of_our_own_takes_nothing_from_the_shell_and_stays_on_loopback():
    shell = {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_TMPDIR": "/x", "RAY_AUTH_TOKEN_PATH": "/y", "HOME": "/h"}
    local, paper = (load(ROOT / f"sizes/{size}.yaml") for size in ("gpu1", "paper"))
    one, two = (trainer_env(local, Path("r"), Path("w"), shell, "/tmp/r") for _ in range(2))
    assert not set(one) & (set(shell) - {"HOME"}) and one["HOME"] == "/h"
    assert one["RAY_AUTH_MODE"] == "token" and len(one["RAY_AUTH_TOKEN"]) == 64
    assert one["RAY_AUTH_TOKEN"] != two["RAY_AUTH_TOKEN"]  # one for each run
    init = compose("gpu1")[1].ray_kwargs.ray_init
    assert (init.address, init._node_ip_address, init._temp_dir) == ("local", "127.0.0.1", "/tmp/r")
    assert trainer_env(paper, Path("r"), Path("w"), shell).items() >= shell.items()  # a cluster's own
    assert compose("paper")[1].ray_kwargs.ray_init.address == "auto"


def test_paths_are_quoted():
    _, c = compose("laptop")
    assert (
        c.data.train_files == "/data/it's.parquet" and c.trainer.default_local_dir == "/work dir/checkpoints"
    )


def test_an_arm_changes_the_method_only():
    _, c = compose("laptop", "standard_grpo")
    assert c.trainer.experiment_name == "standard_grpo-1" and not c.actor_rollout_ref.actor.use_kl_loss
