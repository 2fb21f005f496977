"""What a step's metrics say of its seconds and of the update."""

import os
import types

import pytest

from envace.engine.steps import seen_metrics, server_metrics, step_seconds

os.environ.setdefault("VERL_PLATFORM", "cpu")


@pytest.fixture(scope="module")
def trainer():
    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine import trainer

    return trainer


def test_parts_add_up_to_the_step():
    found = step_seconds({"step": 10.0, "gen": 4.0, "adv": 0.5, "update_actor": 3.0, "testing": 9.0})
    assert found["seconds/other"] == pytest.approx(2.5) and found["seconds/step"] == 10.0
    assert sum(v for k, v in found.items() if k != "seconds/step") == pytest.approx(10.0)
    assert all(name.count("/") == 1 for name in found)


def test_means_over_trained_tokens_come_from_sums():
    sums = {
        "actor/seen/tokens": 8.0,
        "actor/seen/entropy": 4.0,
        "actor/seen/gap": 0.8,
        "actor/seen/gap_max": 0.5,
    }
    assert seen_metrics(sums) == {
        "actor/entropy": 0.5,
        "training/rollout_probs_diff_mean": pytest.approx(0.1),
        "training/rollout_probs_diff_max": 0.5,
    }
    assert seen_metrics({"actor/lr": 1.0}) == {}


def test_servers_are_counted_from_one_rollout_to_the_next():
    def counted(steps, rows, tokens_in, tokens_read, seconds):
        return {
            "steps": steps,
            "rows": rows,
            "tokens_in": tokens_in,
            "tokens_read": tokens_read,
            "seconds": seconds,
        }

    first = [counted(2, 10, 100, 50, 1.0), counted(2, 6, 100, 100, 3.0)]
    second = [counted(3, 20, 140, 60, 2.5), counted(2, 6, 100, 100, 3.0)]
    assert server_metrics(first, []) == {
        "server/seconds": 3.0,
        "server/steps": 4.0,
        "server/rows_a_step": 4.0,
        "server/shared": 0.25,
    }
    assert server_metrics(second, first) == {
        "server/seconds": 1.5,
        "server/steps": 1.0,
        "server/rows_a_step": 10.0,
        "server/shared": 0.75,
    }


def test_finished_groups_are_asked_for_four_times_a_second(trainer, monkeypatch):
    from verl.trainer.ppo.v1 import PPOTrainerSync, replay_buffer

    monkeypatch.setattr(
        PPOTrainerSync, "_build_replay_buffer", lambda self: types.SimpleNamespace(poll_interval=2.0)
    )
    buffer = trainer.RolewiseTrainer._build_replay_buffer(object.__new__(trainer.RolewiseTrainer))
    assert buffer.poll_interval == trainer.POLL_S == 0.25
    slept = []
    monkeypatch.setattr(replay_buffer.time, "sleep", slept.append)
    own = object.__new__(replay_buffer.ReplayBuffer)
    own.poll_interval = buffer.poll_interval
    own._wait_for_next_poll("train", last_debug_time=replay_buffer.time.time())
    assert slept == [0.25]  # verl really waits by the attribute that was set
