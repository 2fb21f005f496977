"""The task generator: reproducible, disjoint between splits, and of the promised variety."""

import json

import pytest

from envace.desk.tasks import generate
from envace.desk.world import CITIES, REFUND_LIMIT
from envace.types import from_json, to_json


def content(task):
    return json.dumps([task.world, [m.content for m in task.prefix], task.user_turns], sort_keys=True)


def test_same_arguments_same_tasks_and_a_longer_list_starts_with_the_shorter():
    assert generate(7, "train", 30) == generate(7, "train", 60)[:30]
    assert generate(7, "train", 5) != generate(8, "train", 5)
    assert [t.id for t in generate(7, "held", 2)] == ["desk-held-0", "desk-held-1"]


def test_splits_share_no_task_whatever_their_seeds():
    seen = {
        s: {content(t) for seed in (1, 2, 3) for t in generate(seed, s, 150)}
        for s in ("train", "held", "warm")
    }
    assert (
        not seen["train"] & seen["held"]
        and not seen["train"] & seen["warm"]
        and not seen["held"] & seen["warm"]
    )
    assert len({content(t) for t in generate(1, "train", 300)}) == 300


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="vaild.*held"):
        generate(1, "vaild", 1)


def test_every_kind_of_difficulty_occurs():
    tasks = generate(7, "train", 300)
    tags = [tag for t in tasks for tag in t.tags]
    for tag in ("status", "credit", "cancel", "refund", "move", "cancel@", "refund@"):
        assert tags.count(tag) > 10
    for tag in ("two_turns", "parallel", "refused"):
        assert 20 < tags.count(tag) < 200
    shown = [json.dumps([r.result for r in t.records]) for t in tasks]
    for error in ("order not found", "no delivery there"):
        assert any(error in s for s in shown)
    dear = [o["total"] > REFUND_LIMIT for t in tasks for o in t.world["orders"].values()]
    assert any(dear) and not all(dear)


def test_the_expert_makes_one_to_four_calls():
    counts = {sum(len(m.calls) for m in t.reference) for t in generate(7, "train", 400)}
    assert counts == {1, 2, 3, 4}


def test_weights_sum_to_one_and_some_items_are_required():
    for task in generate(7, "held", 60):
        assert len(task.checklist) == task.n_turns
        for items in task.checklist:
            assert sum(i.weight for i in items) == pytest.approx(1)
            assert 0 < sum(i.required_for_next_turn for i in items) < len(items)
            assert {i.focus_on for i in items} >= {"assistant.tool_calls", "tool.content"}


def test_each_object_has_a_record_in_turn_0():
    for task in generate(7, "train", 60):
        shown = {v for r in task.records if r.turn == 0 for v in r.call.arguments.values()}
        assert shown >= set(task.world["orders"]) | set(task.world["accounts"])


def test_the_world_never_reaches_the_prompt():
    for task in generate(7, "train", 60):
        prompt = " ".join(m.content for m in task.prefix)
        goal = task.world["goals"][0]
        named = {goal.get("city")}
        assert not any(c in prompt for c in CITIES if c not in named)


def test_tasks_survive_json():
    from envace.types import Task

    [task] = generate(7, "train", 1)
    assert from_json(Task, json.loads(json.dumps(to_json(task)))) == task
