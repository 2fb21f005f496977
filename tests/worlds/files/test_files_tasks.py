"""Tasks of the files world: reproducible, varied, solved by the expert, out of reach without skill."""

import asyncio
import json
import random
from collections import Counter

import pytest

from envace.bench.committed import committed, floor_scores, true_episode
from envace.data.check import check_row
from envace.data.schema import row_from_task, task_from_row
from envace.judge.rules import judge_item
from envace.types import Answer, Observation, Source, StopReason
from envace.worlds.expert import ExpertPolicy
from envace.worlds.files.expert import next_step
from envace.worlds.files.tasks import generate
from envace.worlds.files.tools import SCHEMAS
from envace.worlds.registry import play

TASKS = generate(7, 150)


def test_the_expert_scores_one_in_the_true_world_on_every_task():
    policy = ExpertPolicy(TASKS)

    async def play():
        return [await true_episode(task, policy, 0) for task in TASKS]

    for task, episode in zip(TASKS, asyncio.run(play())):
        score = committed(task, episode)
        assert episode.stop is StopReason.DONE and episode.reward == pytest.approx(1), (
            task.id,
            episode.stop_detail,
        )
        assert score["success"] == 1 and score["checklist"] == pytest.approx(1)


def test_floors_are_low():
    scores = asyncio.run(floor_scores(TASKS, 3))
    assert {name: s["success"] for name, s in scores.items()} == {"do_nothing": 0.0, "random": 0.0}
    assert scores["do_nothing"]["checklist"] == 0 and scores["random"]["checklist"] < 0.15


def test_same_seed_same_tasks_and_a_longer_list_starts_with_the_shorter():
    assert generate(7, 30) == TASKS[:30] != generate(8, 30)
    assert [t.id for t in TASKS[:2]] == ["files-held-0", "files-held-1"]
    assert len({json.dumps([t.world, [m.content for m in t.reference]]) for t in TASKS}) == 150


def test_rows_are_in_the_schema_and_come_back():
    for task in TASKS:
        row = row_from_task(task)
        assert not check_row(row) and task_from_row(row) == task


def test_every_kind_of_difficulty_occurs():
    tags = Counter(tag for t in TASKS for tag in t.tags)
    for tag in (
        "read",
        "size",
        "count",
        "find",
        "delete",
        "move",
        "copy",
        "delete@",
        "move@",
        "copy@",
        "parallel",
    ):
        assert tags[tag] > 4, tag
    assert 30 < tags["two_turns"] < 90 and 30 < tags["refused"] < 100
    errors = {r.result["error"] for t in TASKS for r in t.records if "error" in r.result}
    assert errors >= {
        "no such file",
        "is a directory",
        "exists already",
        "too large",
        "outside the root",
        "no match",
    }


def test_two_to_five_tools_are_on_offer_among_them_those_needed():
    for task in TASKS:
        names = [t["function"]["name"] for t in task.tools]
        assert 2 <= len(names) <= 5 and names == [n for n in SCHEMAS if n in names]
        assert {c.name for m in task.reference for c in m.calls} <= set(names)


def test_weights_sum_to_one_and_two_items_ground_the_responses():
    for task in TASKS:
        assert len(task.checklist) == task.n_turns
        for items in task.checklist:
            assert sum(i.weight for i in items) == pytest.approx(1)
            assert [i.rule["part"] for i in items if i.focus_on == "tool.content"] == ["records", "rules"]
            assert any(i.required_for_next_turn for i in items)


def lie(rng, call):
    """A response of the right shape that owes nothing to the tree."""
    if rng.random() < 0.2:
        return {"error": rng.choice(["no such file", "closed today"])}
    path = call.arguments["path"]
    return {
        "list_dir": {"path": path, "dirs": [], "files": ["ghost.txt"], "count": rng.randrange(7, 99)},
        "read_file": {"path": path, "text": "sell ghosts"},
        "file_info": {"path": path, "size": rng.randrange(1, 99), "locked": rng.random() < 0.5},
        "find_text": {"word": call.arguments.get("word"), "file": "docs/ghost.txt", "count": 1},
    }.get(call.name, {"path": path, "to": call.arguments.get("to"), "done": True})


class Liar:
    """A world of lies, for the one dialogue in the module that plays dialogues."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def call(self, call):
        return Observation(content=lie(self.rng, call), source=Source.ENVIRONMENT)


def play_on_lies(task):
    goals = task.world["goals"]
    messages, _ = play(
        task.prefix, task.user_turns, lambda turn, seen: next_step(goals[turn], seen), Liar(task.id)
    )
    return messages


def test_right_acting_on_a_wrong_rehearsal_loses_grounding_only():
    ungrounded = 0
    for task in TASKS:
        messages, lost = play_on_lies(task), set()
        for turn, items in enumerate(task.checklist):
            for item in items:
                answer = judge_item(item, task, turn, messages).answer
                if item.focus_on != "tool.content":
                    assert answer is Answer.YES, (task.id, turn, item, messages)
                elif answer is Answer.NO:
                    lost.add(item.id)
        ungrounded += bool(lost)
    assert ungrounded > 0.95 * len(TASKS)
