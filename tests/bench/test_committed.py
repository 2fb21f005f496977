"""What a committed run is worth in any kind of world, and the floors beside it."""

import asyncio

import pytest

from envace.bench.committed import committed, end_state, floor_policies, floor_scores, true_episode
from envace.errors import DataError
from envace.policy.scripted import ScriptedPolicy
from envace.types import ToolCall, replace
from envace.worlds import registry as worlds
from envace.worlds.expert import ExpertPolicy
from envace.worlds.files.tasks import generate

TASKS = generate(7, 40)


def played(task):
    return asyncio.run(true_episode(task, ExpertPolicy(task), 0))


def test_the_end_state_is_the_one_the_reference_dialogue_leaves():
    task = next(t for t in TASKS if "delete" in t.tags and "refused" not in t.tags)
    [gone] = [c.arguments["path"] for m in task.reference for c in m.calls if c.name == "delete_file"]
    before, after = worlds.make_world(task).state(), end_state(task).state()
    assert gone in before["files"] and gone not in after["files"]
    assert committed(task, played(task))["success"] == 1


def test_a_change_beyond_the_reference_loses_success_and_nothing_else():
    task = next(t for t in TASKS if t.tags == ("read",))
    episode = played(task)
    meddling = ToolCall(name="make_dir", arguments={"path": "attic"})
    score = committed(task, replace(episode, real_calls=(*episode.real_calls, meddling)))
    assert score["success"] == 0 and score["checklist"] == pytest.approx(1)


def test_an_unreached_turn_counts_zero():
    task = next(t for t in TASKS if t.n_turns == 2)
    episode = played(task)
    score = committed(task, replace(episode, messages=tuple(m for m in episode.messages if m.turn == 0)))
    assert score["success"] == 0 and score["checklist"] == pytest.approx(0.5)


def test_what_cannot_be_judged_is_an_error_not_a_failure():
    task, episode = TASKS[0], played(TASKS[0])
    items = tuple(replace(i, rule={"kind": "nonsense"}) for i in task.checklist[0])
    with pytest.raises(DataError, match="rule_invalid"):
        committed(replace(task, checklist=(items, *task.checklist[1:])), episode)
    with pytest.raises(DataError, match="no reference dialogue"):
        committed(replace(task, reference=()), episode)
    with pytest.raises(DataError, match="no world of kind 'mars'"):
        committed(replace(task, world={"kind": "mars"}), episode)


def test_floors_take_further_agents_by_name():
    silent = {"silent": ScriptedPolicy(lambda request: "sorry, no such file")}
    scores = asyncio.run(floor_scores(TASKS, 3, silent))
    assert list(scores) == ["do_nothing", "random", "silent"] and scores["silent"]["success"] == 0
    assert scores["do_nothing"] == {
        "success": 0,
        "checklist": 0,
        "steps": sum(t.n_turns > 0 for t in TASKS) / 40,
    }


def test_floors_raise_what_went_wrong():
    with pytest.raises(DataError, match="mars"):
        asyncio.run(floor_scores([replace(TASKS[0], world={"kind": "mars"})], 3))


def test_only_the_desk_brings_agents_of_its_own():
    assert floor_policies(TASKS, 3) == {}
