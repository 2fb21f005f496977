"""Rows of verl's queue that stand in a batch once more, and what the trainer makes of them."""

import json
import os
import types

import pytest
import torch

os.environ.setdefault("VERL_PLATFORM", "cpu")


class Queue:
    """verl's queue: rows by key."""

    def __init__(self, rows):
        self.rows = dict(rows)

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        rows = [self.rows[key] for key in keys]
        if select_fields is None:
            return rows
        columns = {name: [row[name] for row in rows] for name in select_fields}
        if "response_mask" in columns:
            columns["response_mask"] = torch.nested.as_nested_tensor(
                columns["response_mask"], layout=torch.jagged
            )
        return columns

    def kv_batch_put(self, keys, partition_id, fields, tags=None):
        if tags is None:
            return fields
        masks = fields["response_mask"].unbind()
        extra = [dict(f) for f in fields["extra_fields"]]
        for key, mask, found in zip(keys, masks, extra):
            self.rows[key] = {"response_mask": mask, "extra_fields": found}


@pytest.fixture(scope="module")
def engine():
    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine import padding, trainer

    return types.SimpleNamespace(padding=padding, trainer=trainer)


def episodes():
    """Two ACT generations earn 1, one earns 0, and one episode said nothing."""
    from envace.types import Episode, FinishReason, Generation, Role, Sampling, StopReason

    def act(prompt, output):
        return Generation(
            role=Role.ACT,
            turn=0,
            step=0,
            prompt_ids=prompt,
            output_ids=output,
            logprobs=(-1.0,) * len(output),
            text="words",
            sampling=Sampling(),
            finish=FinishReason.STOP,
        )

    said = ((act((1, 2), (3, 4)), act((1, 2, 3, 4, 5), (6,))), (act((1, 2), (7, 7)),), ())
    return [
        Episode(
            id=f"s1p0-{k}",
            task_id="t",
            group_id="s1p0",
            seed=0,
            prompt_set="h",
            generations=generations,
            messages=(),
            turn_rewards=(reward,),
            reward=reward,
            stop=StopReason.DONE,
        )
        for k, (generations, reward) in enumerate(zip(said, (1.0, 0.0, 0.0)))
    ]


def queued(method):
    """(queue, batch) of the episodes as the agent loops leave them."""
    from transfer_queue import KVBatchMeta

    from envace.engine.agent_loop import outputs_of

    rows, tags = {}, []
    for episode in episodes():
        for i, output in enumerate(outputs_of(episode, method, 1, fallback_id=0)):
            mask = torch.tensor(output.response_mask)
            rows[f"s1p0_{episode.id[-1]}_{i}"] = {"response_mask": mask, "extra_fields": output.extra_fields}
            tags.append({"seq_len": len(output.prompt_ids) + len(output.response_ids)})
    return Queue(rows), KVBatchMeta(keys=list(rows), tags=tags, partition_id="train")


def filled(engine, method, queue, batch, seed=1):
    return engine.padding.with_copies(batch, queue, method.padding, ranks=1, seed=seed, step=1)


def test_copies_are_their_rows_and_placeholders_are_not_copied(engine):
    from envace.config.method import Method

    method = Method(padding="duplicates", rows="generation")
    queue, batch = queued(method)
    found = filled(engine, method, queue, batch)
    assert len(batch) == 4 and found.keys[:4] == batch.keys  # three rows and a placeholder
    assert [bool(tag.get("is_copy")) for tag in found.tags] == [False] * 4 + [
        True
    ] * 5  # eight rows that say anything
    real = {
        str(queue.rows[key]["response_mask"].tolist()) + queue.rows[key]["extra_fields"]["rows"]
        for key in batch.keys[:3]
    }
    for key in found.keys[4:]:
        row = queue.rows[key]
        assert str(row["response_mask"].tolist()) + row["extra_fields"]["rows"] in real
        assert not row["extra_fields"]["placeholder"]


def test_the_order_of_arrival_does_not_choose(engine):
    from envace.config.method import Method

    method = Method(padding="duplicates", rows="generation")

    def drawn(shuffle):
        queue, batch = queued(method)
        if shuffle:
            batch.reorder([3, 1, 0, 2])
        found = filled(engine, method, queue, batch)
        return [queue.rows[key]["extra_fields"]["rows"] for key in found.keys[4:]]

    assert drawn(False) == drawn(True)


def test_masked_rows_are_left_to_verl(engine):
    from envace.config.method import Method

    queue, batch = queued(Method())
    assert filled(engine, Method(), queue, batch) is batch


def test_copies_count_in_the_baseline_and_episodes_count_once(engine, tmp_path, monkeypatch):
    from envace.config.method import Method
    from envace.types import Message, Task

    method = Method(padding="duplicates", rows="generation", baseline="generation", loss_weight="generation")
    queue, batch = queued(method)
    found = filled(engine, method, queue, batch)
    own = object.__new__(engine.trainer.RolewiseTrainer)
    own.method, own.work, own.global_steps = method, tmp_path, 1
    prefix = (Message(role="user", content="go"),)
    own.tasks = {"t": Task(id="t", prefix=prefix, tools=(), checklist=((),), source="test")}
    judge = types.SimpleNamespace(max_unscored=0.5)
    own.run = types.SimpleNamespace(seed=1, params=types.SimpleNamespace(judge=judge))
    own.config = types.SimpleNamespace(
        data=types.SimpleNamespace(train_batch_size=1),
        actor_rollout_ref=types.SimpleNamespace(rollout=types.SimpleNamespace(n=3)),
    )
    monkeypatch.setattr(engine.trainer, "tq", queue)
    values = [v.tolist() for v in own._compute_advantage(found, {})["advantages"].unbind()]
    rewards = [
        1.0 if json.loads(queue.rows[k]["extra_fields"]["rows"])[0]["episode_id"] == "s1p0-0" else 0.0
        for k in found.keys
    ]
    real = [i for i in range(9) if i != 3]
    good = sum(rewards[i] for i in real)  # of eight rows, copies among them
    for i in real:
        assert values[i] == pytest.approx([rewards[i] - good / 8] * len(values[i]), abs=1e-6)
    assert 2 <= good <= 7 and values[3] == [0.0]
    metrics = own.step_metrics
    assert (metrics["train/copies"], metrics["act/rows"], metrics["train/episodes"]) == (5.0, 8.0, 3.0)
    assert metrics["train/sequences"] == 8.0
