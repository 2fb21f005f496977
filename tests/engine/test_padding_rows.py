"""Rows of verl's queue that stand in a batch once more, and what the trainer makes of them."""

import json

import pytest
import torch
from step_kit import Queue, generation, group_of, trainer_of

from envace.config.method import Method

COPIED = Method(padding="duplicates", rows="generation", baseline="generation", loss_weight="generation")


def episodes():
    """Two ACT generations earn 1, one earns 0, and one episode said nothing."""
    said = (generation((1, 2), (3, 4)), generation((1, 2, 3, 4, 5), (6,)))
    return group_of([(said, 1.0), ((generation((1, 2), (7, 7)),), 0.0), ((), 0.0)])


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


def filled(method, queue, batch):
    from envace.engine.padding import with_copies

    return with_copies(batch, queue, method.padding, ranks=1, seed=1, step=1)


def said(queue, key):
    return str(queue.rows[key]["response_mask"].tolist()) + queue.rows[key]["extra_fields"]["rows"]


def test_copies_are_their_rows_and_placeholders_are_not_copied(trainer):
    queue, batch = queued(COPIED)
    found = filled(COPIED, queue, batch)
    assert len(batch) == 4 and found.keys[:4] == batch.keys  # three rows and a placeholder
    # eight rows that say anything
    assert [bool(tag.get("is_copy")) for tag in found.tags] == [False] * 4 + [True] * 5
    real = {said(queue, key) for key in batch.keys[:3]}
    for key in found.keys[4:]:
        assert said(queue, key) in real and not queue.rows[key]["extra_fields"]["placeholder"]


def test_the_order_of_arrival_does_not_choose(trainer):
    def drawn(shuffle):
        queue, batch = queued(COPIED)
        if shuffle:
            batch.reorder([3, 1, 0, 2])
        found = filled(COPIED, queue, batch)
        return [queue.rows[key]["extra_fields"]["rows"] for key in found.keys[4:]]

    assert drawn(False) == drawn(True)


def test_masked_rows_are_left_to_verl(trainer):
    queue, batch = queued(Method())
    assert filled(Method(), queue, batch) is batch


def test_copies_count_in_the_baseline_and_episodes_count_once(trainer, tmp_path, monkeypatch):
    queue, batch = queued(COPIED)
    found = filled(COPIED, queue, batch)
    own = trainer_of(trainer, COPIED, tmp_path, 1, episodes())
    monkeypatch.setattr(trainer, "tq", queue)
    values = [v.tolist() for v in own._compute_advantage(found, {})["advantages"].unbind()]
    ids = [json.loads(queue.rows[k]["extra_fields"]["rows"])[0]["episode_id"] for k in found.keys]
    rewards = [float(episode_id == "s1p0-0") for episode_id in ids]
    real = [i for i in range(9) if i != 3]
    good = sum(rewards[i] for i in real)  # of eight rows, copies among them
    for i in real:
        assert values[i] == pytest.approx([rewards[i] - good / 8] * len(values[i]), abs=1e-6)
    assert 2 <= good <= 7 and values[3] == [0.0]
    metrics = own.step_metrics
    assert (metrics["train/copies"], metrics["act/rows"], metrics["train/episodes"]) == (5.0, 8.0, 3.0)
    assert metrics["train/sequences"] == 8.0
