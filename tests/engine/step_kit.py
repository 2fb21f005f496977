"""A trainer that has played a step: from episodes to what verl gets, without verl's own bookkeeping."""

import os
import types

import pytest
import torch

from envace.types import Episode, FinishReason, Generation, Message, Role, Sampling, StopReason, Task

os.environ.setdefault("VERL_PLATFORM", "cpu")


@pytest.fixture(scope="module")
def trainer():
    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine import trainer

    return trainer


def generation(prompt, output, role=Role.ACT, turn=0):
    said = {"logprobs": (-1.0,) * len(output), "text": "words", "finish": FinishReason.STOP}
    ids = {"prompt_ids": tuple(prompt), "output_ids": tuple(output)}
    return Generation(role=role, turn=turn, step=turn, sampling=Sampling(), **ids, **said)


def group_of(members, step=1):
    """The episodes of one prompt, from (generations, reward) of each."""
    shared = {"task_id": "t", "group_id": f"s{step}p0", "seed": 0, "prompt_set": "h", "messages": ()}
    return [
        Episode(
            id=f"s{step}p0-{k}",
            generations=tuple(generations),
            turn_rewards=(reward,),
            reward=reward,
            stop=StopReason.DONE,
            **shared,
        )
        for k, (generations, reward) in enumerate(members)
    ]


def episodes_of(step):
    """A prompt of two episodes: two growing ACT generations and a rehearsal earn 1, one ACT generation earns
    0.
    """
    first = (
        generation((1, 2), (3, 4)),
        generation((9,), (8, 8, 8), Role.REHEARSE),
        generation((1, 2, 3, 4, 5), (6,), turn=1),
    )
    return group_of([(first, 1.0), ((generation((1, 2), (7, 7)),), 0.0)], step)


class Queue:
    """verl's queue: rows by key."""

    def __init__(self, rows):
        self.rows = dict(rows)

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        rows = [self.rows[key] for key in keys]
        if select_fields is None:
            return rows
        columns = {name: [row[name] for row in rows] for name in select_fields}
        masks = [mask.long() for mask in columns.get("response_mask", ())]
        return columns | ({"response_mask": nested(masks)} if masks else {})

    def kv_batch_put(self, keys, partition_id, fields, tags=None):
        if tags is None:
            return fields
        for key, mask, found in zip(keys, fields["response_mask"].unbind(), fields["extra_fields"]):
            self.rows[key] = {"response_mask": mask, "extra_fields": dict(found)}


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Batch:
    def __init__(self, tags, keys=None):
        self.tags, self.keys, self.partition_id = tags, keys or [str(k) for k in range(len(tags))], "train"

    def __len__(self):
        return len(self.tags)


def trainer_of(trainer, method, work, step, episodes, sources=None, max_unscored=0.5):
    """The trainer of a step whose episodes were played, with what it asks of a run."""
    own, prompts = object.__new__(trainer.RolewiseTrainer), len({e.group_id for e in episodes})
    own.method, own.work, own.global_steps = method, work, step
    shown = {"prefix": (Message(role="user", content="go"),), "tools": (), "checklist": ((),)}
    own.tasks = {t: Task(id=t, source=source, **shown) for t, source in (sources or {"t": "test"}).items()}
    judge = types.SimpleNamespace(max_unscored=max_unscored)
    own.run = types.SimpleNamespace(seed=1, params=types.SimpleNamespace(judge=judge))
    rollout = types.SimpleNamespace(n=len(episodes) // prompts)
    own.config = types.SimpleNamespace(
        data=types.SimpleNamespace(train_batch_size=prompts),
        actor_rollout_ref=types.SimpleNamespace(rollout=rollout),
    )
    return own


@pytest.fixture
def step_of(trainer, tmp_path, monkeypatch):
    """`(advantages of each stream, metrics)` of a step under a method, as the trainer computes them."""
    from envace.engine.agent_loop import outputs_of

    def step_of(method, step=1, padding=1, episodes=episodes_of, max_unscored=0.5, sources=None):
        played = episodes(step)
        own = trainer_of(trainer, method, tmp_path, step, played, sources, max_unscored)
        outputs = [o for e in played for o in outputs_of(e, method, step, fallback_id=0)]
        rows = [(torch.tensor(o.response_mask), o.extra_fields) for o in outputs]
        rows += [(torch.zeros(1), outputs[0].extra_fields)] * padding
        named = {str(k): {"response_mask": m, "extra_fields": f} for k, (m, f) in enumerate(rows)}
        monkeypatch.setattr(trainer, "tq", Queue(named))
        tags = [{"is_padding": False}] * len(outputs) + [{"is_padding": True}] * padding
        fields = own._compute_advantage(Batch(tags), {})
        return [v.tolist() for v in fields["advantages"].unbind()], own.step_metrics

    step_of.work = tmp_path
    return step_of
