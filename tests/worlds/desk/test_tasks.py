"""The task generator: reproducible, disjoint between splits, and of the promised variety."""

import itertools
import json

import pytest

from envace.types import from_json, to_json
from envace.worlds.desk.goals import CHANGES
from envace.worlds.desk.tasks import SPLITS, UNSEEN, generate, outcome
from envace.worlds.desk.tools import CITIES, DAYS, TABLES


def content(task):
    return json.dumps([task.world, [m.content for m in task.prefix], task.user_turns], sort_keys=True)


def test_same_arguments_same_tasks_and_a_longer_list_starts_with_the_shorter():
    assert generate(7, "train", 30) == generate(7, "train", 60)[:30]
    assert generate(7, "train", 5) != generate(8, "train", 5)
    assert [t.id for t in generate(7, "held", 2)] == ["desk-held-0", "desk-held-1"]


def test_splits_share_no_task_whatever_their_seeds():
    seen = {s: {content(t) for seed in (1, 2, 3) for t in generate(seed, s, 150)} for s in SPLITS}
    assert not any(seen[a] & seen[b] for a, b in itertools.combinations(seen, 2))
    assert len({content(t) for t in generate(1, "train", 300)}) == 300


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="vaild.*held"):
        generate(1, "vaild", 1)


def combinations(tasks):
    return {(g["do"], outcome(g, k, t.reference)) for t in tasks for k, g in enumerate(t.world["goals"])}


def test_unseen_combinations_are_made_of_tools_and_refusals_that_training_meets_apart():
    known, unseen = combinations(generate(7, "train", 600)), combinations(generate(7, "unseen", 600))
    assert not known & UNSEEN and UNSEEN <= unseen
    assert {do for do, _ in UNSEEN} <= {do for do, _ in known}
    assert {how for _, how in UNSEEN} <= {how for _, how in known}
    assert not combinations(generate(7, "warm", 600)) & UNSEEN


def test_every_kind_of_difficulty_occurs():
    tasks = generate(7, "train", 400)
    tags = [tag for t in tasks for tag in t.tags]
    for tag in ("look", "ok", "missing", "state", "limit", "refused", "via", "parallel", *CHANGES):
        assert tags.count(tag) > 5, tag
    for tag in ("1_turns", "2_turns", "3_turns"):
        assert 40 < tags.count(tag) < 280
    shown = [json.dumps([r.result for r in t.records]) for t in tasks]
    for error in ("order not found", "no delivery there", "closed that day", "too many seats"):
        assert any(error in s for s in shown)


def test_the_expert_makes_one_to_six_calls_with_two_to_five_tools_on_offer():
    tasks = generate(7, "train", 600)
    assert {sum(len(m.calls) for m in t.reference) for t in tasks} == {1, 2, 3, 4, 5, 6}
    assert {len(t.tools) for t in tasks} == {2, 3, 4, 5}
    for task in tasks:
        offered = {tool["function"]["name"] for tool in task.tools}
        assert offered >= {c.name for m in task.reference for c in m.calls}


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
        assert shown >= {i for table in TABLES.values() for i in task.world[table]}


def test_the_world_never_reaches_the_prompt():
    for task in generate(7, "train", 60):
        words = " ".join(m.content for m in task.prefix).split()
        goal = task.world["goals"][0]
        assert not {*CITIES, *DAYS} & set(words) - {goal.get("city"), goal.get("day")}


def test_tasks_survive_json():
    from envace.types import Task

    [task] = generate(7, "train", 1)
    assert from_json(Task, json.loads(json.dumps(to_json(task)))) == task
