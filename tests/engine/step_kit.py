"""A trainer that has played a step: from episodes to what verl gets, without verl's own bookkeeping."""

import os
import types

import pytest
import torch

os.environ.setdefault("VERL_PLATFORM", "cpu")


@pytest.fixture(scope="module")
def trainer():
    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine import trainer

    return trainer


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
    """A prompt of two episodes: two growing ACT generations and a rehearsal earn 1, one ACT generation earns
    0."""
    from envace.types import Episode, FinishReason, Generation, Role, Sampling, StopReason

    def generation(role, prompt, output, turn=0):
        return Generation(
            role=role,
            turn=turn,
            step=0,
            prompt_ids=prompt,
            output_ids=output,
            logprobs=(-1.0,) * len(output),
            text="words",
            sampling=Sampling(),
            finish=FinishReason.STOP,
        )

    act, rehearse = Role.ACT, Role.REHEARSE
    first = (
        generation(act, (1, 2), (3, 4)),
        generation(rehearse, (9,), (8, 8, 8)),
        generation(act, (1, 2, 3, 4, 5), (6,), turn=1),
    )
    return [
        Episode(
            id=f"s{step}p0-{k}",
            task_id="t",
            group_id=f"s{step}p0",
            seed=0,
            prompt_set="h",
            generations=generations,
            messages=(),
            turn_rewards=(reward,),
            reward=reward,
            stop=StopReason.DONE,
        )
        for k, (generations, reward) in enumerate(((first, 1.0), ((generation(act, (1, 2), (7, 7)),), 0.0)))
    ]


@pytest.fixture
def step_of(trainer, tmp_path, monkeypatch):
    """`(advantages of each stream, metrics)` of a step under a method, as the trainer computes them."""
    from envace.engine.agent_loop import outputs_of
    from envace.types import Message, Task

    def step_of(method, step=1, padding=1, episodes=episodes_of, max_unscored=0.5, sources=None):
        own, played = object.__new__(trainer.RolewiseTrainer), episodes(step)
        own.method, own.work, own.global_steps = method, tmp_path, step
        own.tasks = {
            name: Task(
                id=name,
                prefix=(Message(role="user", content="go"),),
                tools=(),
                checklist=((),),
                source=source,
            )
            for name, source in (sources or {"t": "test"}).items()
        }
        own.run = types.SimpleNamespace(
            seed=1, params=types.SimpleNamespace(judge=types.SimpleNamespace(max_unscored=max_unscored))
        )
        prompts = len({e.group_id for e in played})
        own.config = types.SimpleNamespace(
            data=types.SimpleNamespace(train_batch_size=prompts),
            actor_rollout_ref=types.SimpleNamespace(rollout=types.SimpleNamespace(n=len(played) // prompts)),
        )
        outputs = [o for e in played for o in outputs_of(e, method, step, fallback_id=0)]
        monkeypatch.setattr(trainer, "tq", Queue(outputs, padding))
        tags = [{"is_padding": False}] * len(outputs) + [{"is_padding": True}] * padding
        batch = Batch(tags)
        fields = own._compute_advantage(batch, {})
        return [v.tolist() for v in fields["advantages"].unbind()], own.step_metrics

    step_of.work = tmp_path
    return step_of


class Batch:
    def __init__(self, tags):
        self.tags, self.keys, self.partition_id = tags, [str(k) for k in range(len(tags))], "train"

    def __len__(self):
        return len(self.tags)
