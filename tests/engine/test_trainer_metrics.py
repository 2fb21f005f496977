"""What a step trains on, and what its metrics say of its seconds and of the update."""

import json
import types

import pytest
from step_kit import episodes_of
from test_overrides import compose

from envace.config.method import Method
from envace.engine.step_metrics import server_metrics, step_seconds
from envace.learn.running import read_means
from envace.types import replace, to_json


def test_parts_add_up_to_the_step():
    found = step_seconds({"step": 10.0, "gen": 4.0, "adv": 0.5, "update_actor": 3.0, "testing": 9.0})
    assert found["seconds/other"] == pytest.approx(2.5) and found["seconds/step"] == 10.0
    assert sum(v for k, v in found.items() if k != "seconds/step") == pytest.approx(10.0)
    assert all(name.count("/") == 1 for name in found)


def test_servers_are_counted_from_one_rollout_to_the_next():
    def counted(*counts):
        return dict(zip(("steps", "rows", "tokens_in", "tokens_read", "seconds"), counts))

    def told(*found):
        return dict(zip(("server/seconds", "server/steps", "server/rows_a_step", "server/shared"), found))

    first = [counted(2, 10, 100, 50, 1.0), counted(2, 6, 100, 100, 3.0)]
    second = [counted(3, 20, 140, 60, 2.5), counted(2, 6, 100, 100, 3.0)]
    assert server_metrics(first, []) == told(3.0, 4.0, 4.0, 0.25)
    assert server_metrics(second, first) == told(1.5, 1.0, 10.0, 0.75)


def test_finished_groups_are_asked_for_four_times_a_second(trainer, monkeypatch):
    from verl.trainer.ppo.v1 import PPOTrainerSync, replay_buffer

    from envace.engine.watched_queue import WatchedQueue

    config = types.SimpleNamespace(trainer=compose("laptop")[1].trainer)
    own = types.SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=None)
    queue, slept = PPOTrainerSync._build_replay_buffer(own), []
    monkeypatch.setattr(replay_buffer.time, "sleep", slept.append)
    queue._wait_for_next_poll("train", last_debug_time=replay_buffer.time.time())
    assert isinstance(queue, WatchedQueue) and slept == [0.25]


# --- from episodes to what verl gets
# --------------------------------------------------------------------------


def test_verl_gets_token_advantages_with_holes_and_padding_of_zeros(step_of):
    values, metrics = step_of(Method())
    assert values == [[0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.5], [-0.5, -0.5], [0.0]]  # the rehearsal is lone
    assert metrics["train/sequences"] == 3.0 and metrics["train/untrained_rows"] == 1.0


def test_the_numbers_of_a_step_are_the_same_however_rows_are_merged(step_of):
    for loss_weight in ("token", "generation", "episode"):
        merged, own = (
            step_of(Method(rows=how, loss_weight=loss_weight))[1] for how in ("merged", "generation")
        )
        assert own.pop("train/sequences") == 4.0 and merged.pop("train/sequences") == 3.0
        assert own == merged
        assert own["act/rows"] == 3.0 and own["act/adv_mean"] == pytest.approx((0.5 + 0.5 - 0.5) / 3)


def test_a_stored_episode_lacks_prompts_and_log_probabilities_and_nothing_else(trainer):
    from envace.engine.agent_loop import outputs_of

    [episode, _] = episodes_of(1)
    episode = replace(episode, generations=tuple(replace(g, seconds=0.5) for g in episode.generations))
    *_, last = outputs_of(episode, Method(), 1, fallback_id=0)
    kept, whole = json.loads(last.extra_fields["episode_json"]), json.loads(json.dumps(to_json(episode)))
    for generation in whole["generations"]:
        generation.update(prompt_ids=[], logprobs=[])
    assert kept == whole and kept["generations"][0]["seconds"] == 0.5
    assert kept["generations"][0]["output_ids"] == [3, 4]


def test_an_episode_without_rows_weighs_nothing(step_of):
    def silent(step):
        one, other = episodes_of(step)
        return [one, replace(other, generations=())]

    values, metrics = step_of(Method(lone="raw"), episodes=silent)
    assert values == [[1.0] * 3, [1.0, 1.0, 0.0, 1.0], [0.0], [0.0]]
    assert metrics["train/untrained_rows"] == 2.0 and metrics["train/lone"] == 2.0


def test_a_resumed_run_shrinks_towards_what_the_unbroken_one_did(step_of):
    method = Method(baseline="shrinkage", shrink_weight=2.0, shrink_memory=0.5)
    first, second = step_of(method, 1)[0], step_of(method, 2)[0]
    assert first[1] == [0.5, 0.5, 0.0, 0.5]  # nothing to shrink to yet
    assert step_of(method, 2)[0] == second and step_of(method, 1)[0] == first
    # ACT's running mean is 0.5 as is the group's; REHEARSE's is 1, and the lone episode earned 1
    assert second == [[0.0] * 3, [0.5, 0.5, 0.0, 0.5], [-0.5, -0.5], [0.0]]
    with pytest.raises(FileNotFoundError):
        step_of(method, 9)


def test_two_data_sources_shrink_each_towards_its_own_past(step_of):
    """Prompts of two sources, two episodes each. desk earns 1 and 0, cm2 0.5 and 0.25, in every step."""

    def both(step):
        [a, b] = [replace(e, generations=e.generations[:1]) for e in episodes_of(step)]
        other = [
            replace(e, id=f"s{step}p1-{k}", group_id=f"s{step}p1", task_id="u", reward=reward)
            for k, (e, reward) in enumerate(((a, 0.5), (b, 0.25)))
        ]
        return [a, b, *other]

    method = Method(baseline="shrinkage", shrink_weight=2.0, shrink_memory=0.5)
    sources = {"t": "desk", "u": "cm2"}
    for step in (1, 2):
        values, _ = step_of(method, step, padding=0, episodes=both, sources=sources)
        # the running means are the groups' own, so nothing is drawn anywhere; one mean over both (0.4375)
        # would draw
        assert [row[0] for row in values] == pytest.approx([0.5, -0.5, 0.125, -0.125])
    assert read_means(step_of.work, 2) == {"act/desk": 0.5, "act/cm2": 0.375}

    # a resumed run whose third step holds cm2 alone, and better: (2 * 0.875 + 2 * 0.375) / 4 = 0.625 for each
    def better(step):
        return [
            replace(e, id=f"s{step}p0-{k}", group_id=f"s{step}p0", reward=e.reward + 0.5)
            for k, e in enumerate(both(step)[2:])
        ]

    values, _ = step_of(method, 3, padding=0, episodes=better, sources=sources)
    assert [row[0] for row in values] == pytest.approx([1.0 - 0.625, 0.75 - 0.625])
    means = read_means(step_of.work, 3)
    assert means == {"act/desk": 0.5, "act/cm2": 0.5 * 0.375 + 0.5 * 0.875}
