"""What a step trains on, and what its metrics say of its seconds and of the update."""

import os
import types

import pytest
import torch

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


# --- from episodes to what verl gets --------------------------------------------------------------------------


class Queue:
    """verl's queue: the fields that were put, by key."""

    def __init__(self, outputs, padding):
        self.columns = {
            "extra_fields": [o.extra_fields for o in outputs] + [outputs[0].extra_fields] * padding,
            "response_mask": self.nested(
                [torch.tensor(o.response_mask) for o in outputs] + [torch.zeros(1)] * padding
            ),
        }

    def nested(self, rows):
        return torch.nested.as_nested_tensor([r.long() for r in rows], layout=torch.jagged)

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {name: self.columns[name] for name in select_fields}

    def kv_batch_put(self, keys, partition_id, fields):
        return fields


def episodes_of(step):
    """A prompt of two episodes: two growing ACT generations and a rehearsal earn 1, one ACT generation earns 0."""
    from envace.types import Episode, FinishReason, Generation, Role, Sampling, StopReason

    def generation(role, prompt, output, turn=0):
        return Generation(
            role=role, turn=turn, step=0, prompt_ids=prompt, output_ids=output, logprobs=(-1.0,) * len(output),
            text="words", sampling=Sampling(), finish=FinishReason.STOP,
        )  # fmt: skip

    act, rehearse = Role.ACT, Role.REHEARSE
    first = (
        generation(act, (1, 2), (3, 4)),
        generation(rehearse, (9,), (8, 8, 8)),
        generation(act, (1, 2, 3, 4, 5), (6,), turn=1),
    )
    return [
        Episode(
            id=f"s{step}p0-{k}", task_id="t", group_id=f"s{step}p0", seed=0, prompt_set="h", generations=generations,
            messages=(), turn_rewards=(reward,), reward=reward, stop=StopReason.DONE,
        )
        for k, (generations, reward) in enumerate(((first, 1.0), ((generation(act, (1, 2), (7, 7)),), 0.0)))
    ]  # fmt: skip


@pytest.fixture
def step_of(trainer, tmp_path, monkeypatch):
    """`(advantages of each stream, metrics)` of a step under a method, as the trainer computes them."""
    from envace.engine.agent import outputs_of
    from envace.types import Message, Task

    def step_of(method, step=1, padding=1, episodes=episodes_of):
        own = object.__new__(trainer.RolewiseTrainer)
        own.method, own.work, own.global_steps = method, tmp_path, step
        own.tasks = {
            "t": Task(
                id="t", prefix=(Message(role="user", content="go"),), tools=(), checklist=((),), source="test"
            )
        }
        own.run = types.SimpleNamespace(
            seed=1, params=types.SimpleNamespace(judge=types.SimpleNamespace(max_unscored=0.5))
        )
        own.config = types.SimpleNamespace(
            data=types.SimpleNamespace(train_batch_size=1),
            actor_rollout_ref=types.SimpleNamespace(rollout=types.SimpleNamespace(n=2)),
        )
        outputs = [o for e in episodes(step) for o in outputs_of(e, method, step, fallback_id=0)]
        monkeypatch.setattr(trainer, "tq", Queue(outputs, padding))
        tags = [{"is_padding": False}] * len(outputs) + [{"is_padding": True}] * padding
        batch = Batch(tags)
        fields = own._compute_advantage(batch, {})
        return [v.tolist() for v in fields["advantages"].unbind()], own.step_metrics

    return step_of


class Batch:
    def __init__(self, tags):
        self.tags, self.keys, self.partition_id = tags, [str(k) for k in range(len(tags))], "train"

    def __len__(self):
        return len(self.tags)


def test_verl_gets_token_advantages_with_holes_and_padding_of_zeros(step_of):
    from envace.method import Method

    values, metrics = step_of(Method())
    assert values == [[0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.5], [-0.5, -0.5], [0.0]]  # the rehearsal is lone
    assert metrics["train/sequences"] == 3.0 and metrics["train/untrained_rows"] == 1.0


def test_the_numbers_of_a_step_are_the_same_however_rows_are_merged(step_of):
    from envace.method import Method

    for loss_weight in ("token", "generation", "episode"):
        merged, own = (
            step_of(Method(rows=how, loss_weight=loss_weight))[1] for how in ("merged", "generation")
        )
        assert own.pop("train/sequences") == 4.0 and merged.pop("train/sequences") == 3.0
        assert own == merged
        assert own["act/rows"] == 3.0 and own["act/adv_mean"] == pytest.approx((0.5 + 0.5 - 0.5) / 3)


def test_an_episode_without_rows_weighs_nothing(step_of):
    from envace.method import Method
    from envace.types import replace

    def silent(step):
        one, other = episodes_of(step)
        return [one, replace(other, generations=())]

    values, metrics = step_of(Method(lone="raw"), episodes=silent)
    assert values == [[1.0] * 3, [1.0, 1.0, 0.0, 1.0], [0.0], [0.0]]
    assert metrics["train/untrained_rows"] == 2.0 and metrics["train/lone"] == 2.0


def test_a_resumed_run_shrinks_towards_what_the_unbroken_one_did(step_of):
    from envace.method import Method

    method = Method(baseline="shrinkage", shrink_weight=2.0, shrink_memory=0.5)
    first, second = step_of(method, 1)[0], step_of(method, 2)[0]
    assert first[1] == [0.5, 0.5, 0.0, 0.5]  # nothing to shrink to yet
    assert step_of(method, 2)[0] == second and step_of(method, 1)[0] == first
    # ACT's running mean is 0.5 as is the group's; REHEARSE's is 1, and the lone episode earned 1
    assert second == [[0.0] * 3, [0.5, 0.5, 0.0, 0.5], [-0.5, -0.5], [0.0]]
    with pytest.raises(FileNotFoundError):
        step_of(method, 9)
