"""The gap between sampled and recomputed log-probabilities: its numbers, its alarm, and what a person is
told.
"""

import contextlib
import math
import types

import pytest
import torch
from step_kit import generation, group_of

from envace.config import parse
from envace.engine.run_files import Progress, emit, follow, line
from envace.engine.step_metrics import WeightsNotSynced, check_weights, gap_metrics, gap_sums, gap_warning
from envace.types import replace

LIMIT = 0.05


def test_means_and_maxima_by_hand():
    own, sampled = torch.log(torch.tensor([0.5, 0.25, 1.0])), torch.log(torch.tensor([0.25, 0.25, 0.5]))
    found = gap_metrics(gap_sums(own, sampled), LIMIT)
    assert found == {
        "gap/probs_mean": pytest.approx(0.25),
        "gap/probs_max": pytest.approx(0.5),
        "gap/logprob_mean": pytest.approx(2 * math.log(2) / 3),
        "gap/logprob_max": pytest.approx(math.log(2)),
        "gap/alarms": 1.0,
    }


def test_sums_of_parts_give_the_mean_over_tokens_not_over_parts():
    zeros = torch.zeros(3)
    parts = [gap_sums(zeros[:1] - 0.08, zeros[:1]), gap_sums(zeros, zeros)]
    whole = {k: (max if k.endswith("_max") else sum)(p[k] for p in parts) for k in parts[0]}
    assert gap_metrics(whole, LIMIT)["gap/logprob_mean"] == pytest.approx(0.02)


def test_nothing_trained_is_no_gap_and_no_alarm():
    assert gap_metrics(gap_sums(torch.zeros(0), torch.zeros(0)), LIMIT) == {} == gap_metrics({}, LIMIT)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_gap_that_is_no_number_is_too_large(bad):
    found = gap_metrics(gap_sums(torch.tensor([0.0, -1.0]), torch.tensor([bad, -1.0])), LIMIT)
    assert found["gap/alarms"] == 1.0 and gap_warning(found, LIMIT)


def test_the_limit_itself_is_allowed():
    sums = {"tokens": 2.0, "probs": 0.0, "probs_max": 0.0, "logprob": 2 * LIMIT, "logprob_max": 1.0}
    assert gap_metrics(sums, LIMIT)["gap/alarms"] == 0.0
    assert gap_metrics(sums, LIMIT * 0.99)["gap/alarms"] == 1.0


# --- in a step
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def own(trainer, tmp_path, monkeypatch):
    """A trainer that has played a step, without verl's own bookkeeping."""
    from verl.trainer.ppo.v1 import PPOTrainerSync

    monkeypatch.setattr(PPOTrainerSync, "_compute_metrics", lambda *args: None)
    monkeypatch.setattr(PPOTrainerSync, "_compute_old_log_prob", lambda self, batch, metrics: batch)
    found = object.__new__(trainer.RolewiseTrainer)
    found.run = types.SimpleNamespace(
        params=parse({"policy": {"kind": "tiny"}, "train": {"max_logprob_gap": 0.05}})
    )
    found.work, found.began, found.between = tmp_path, 0.0, 0.0
    found.first_step = found.global_steps = 1
    found.alarms = 0
    found.total_training_steps = 9
    found.step_metrics, found.step_server, found.step_gap = {"train/reward": 0.5}, {}, {}
    return found


def recomputed(own, trainer, monkeypatch, sampled, bypass=False):
    """What the trainer makes of the queue's columns; the second token is an observation."""
    nested = torch.nested.as_nested_tensor
    columns = {
        "response_mask": nested([torch.tensor([1, 0, 1]), torch.tensor([0])], layout=torch.jagged),
        "old_log_probs": nested([torch.tensor([-1.0, -9.0, -2.0]), torch.tensor([0.0])], layout=torch.jagged),
        "rollout_log_probs": nested([torch.tensor(sampled), torch.tensor([5.0])], layout=torch.jagged),
    }

    def get(keys, partition_id, select_fields):
        return {name: columns[name] for name in select_fields}

    monkeypatch.setattr(trainer, "tq", types.SimpleNamespace(kv_batch_get=get))
    correction = {"rollout_correction": {"bypass_mode": bypass}}
    own.config = types.SimpleNamespace(algorithm=correction)
    batch = types.SimpleNamespace(keys=["0", "1"], partition_id="train")
    assert own._compute_old_log_prob(batch, {}) is batch
    own._compute_metrics(batch, {}, {"step": 1.0}, 1, 0)
    [event, *_] = [Progress(**record) for record, _ in follow(own.work / "progress.jsonl", 0)]
    return event


def test_bug_25_a_gap_above_the_limit_is_counted_and_said_with_what_to_do(own, trainer, monkeypatch):
    """Public bug 25: learning went silently off-policy after the engine woke with old weights."""
    event = recomputed(own, trainer, monkeypatch, [-1.3, 0.0, -2.1])
    assert event.metrics["gap/alarms"] == 1.0
    assert event.metrics["gap/logprob_mean"] == pytest.approx(0.2)
    assert event.metrics["gap/logprob_max"] == pytest.approx(0.3)
    said = line(event)
    assert "warning" in said and "0.2 on average" in said and "train.max_logprob_gap = 0.05" in said
    assert "older weights" in said and "rollout.top_p" in said
    recomputed(own, trainer, monkeypatch, [-1.0, 0.0, -2.0])  # one may be an outlier
    recomputed(own, trainer, monkeypatch, [-1.3, 0.0, -2.1])
    with pytest.raises(WeightsNotSynced, match="2 steps in a row; log-probabilities .* differ by 0.2"):
        recomputed(own, trainer, monkeypatch, [-1.3, 0.0, -2.1])


@pytest.mark.parametrize(("versions", "fails"), [([4, 4], False), ([None, 4], False), ([4, 3], True)])
def test_weights_that_did_not_reach_the_server_stop_the_training(versions, fails):
    played = [replace(generation([1], [2]), weight_version=version) for version in versions]
    episodes = group_of([(played, 1.0)], step=5)
    with pytest.raises(WeightsNotSynced, match="step 3, not 4") if fails else contextlib.nullcontext():
        check_weights(episodes, step=5)


def test_an_agent_loop_that_died_is_noticed_while_its_episodes_are_awaited(trainer, monkeypatch):
    from ray.exceptions import RayActorError

    from envace.engine import watched_queue

    answers = iter([["fine"], ["dead"]])

    def get(refs):
        if "dead" in refs:
            raise RayActorError

    fake = types.SimpleNamespace(wait=lambda asked, **how: (next(answers), []), get=get)
    monkeypatch.setattr(watched_queue, "ray", fake)
    monkeypatch.setattr(watched_queue, "ASK_S", 0.0)
    queue = object.__new__(watched_queue.WatchedQueue)
    queue.workers = [types.SimpleNamespace(__ray_ready__=types.SimpleNamespace(remote=lambda: "asked"))]
    queue._asked, queue._asked_at = [], 0.0
    queue.check_workers()
    queue.check_workers()
    with pytest.raises(RuntimeError, match="an agent-loop process died"):
        queue.check_workers()


def test_a_small_gap_is_logged_without_a_warning(own, trainer, monkeypatch):
    event = recomputed(own, trainer, monkeypatch, [-1.01, 7.0, -2.0])
    assert (event.metrics["gap/alarms"], event.metrics["gap/logprob_mean"]) == (0.0, pytest.approx(0.005))
    assert "warning" not in line(event) and own.step_gap == {}


def test_the_engine_that_recomputes_nothing_is_not_asked_twice(own, trainer, monkeypatch):
    event = recomputed(own, trainer, monkeypatch, [-9.0, 0.0, -9.0], bypass=True)
    assert not any(name.startswith("gap/") for name in event.metrics)


def test_the_limit_is_a_parameter(own, trainer, monkeypatch):
    own.run.params = parse({"policy": {"kind": "tiny"}, "train": {"max_logprob_gap": 0.5}})
    assert recomputed(own, trainer, monkeypatch, [-1.3, 0.0, -2.1]).metrics["gap/alarms"] == 0.0


def test_a_warning_travels_with_its_step(tmp_path):
    emit(tmp_path, Progress(phase="step", step=1, steps=2, metrics={"a": 1.0}, warning="warning: x"))
    [(record, _)] = follow(tmp_path / "progress.jsonl")
    assert Progress(**record).warning == "warning: x" and line(Progress(**record)).endswith("; warning: x")
