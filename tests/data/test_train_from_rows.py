"""Rows of another pipeline, annotated ones and the kept traps, staged and trained on: no world answers, only
the policy that rehearses."""

import copy
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from test_traps import TRAPS

from envace.config import load, parse
from envace.data.stage import stage
from envace.data.store import read_tasks
from envace.engine import checkpoints, launch, process
from envace.engine.run_files import read_steps
from envace.policy.card import BUNDLED
from envace.types import Answer, Episode, Role, from_json

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("kite", "dune", "olive", "frost", "ember", "coral", "lemon", "pearl")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "One order of the shop.",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string"}},
            "required": ["order_id"],
        },
    },
}


def annotated_row(k):
    """One or two turns, with thoughts and rules; its words are those the bundled policy can use."""
    asked = [WORDS[(k + t) % len(WORDS)] for t in range(1 + k % 2)]
    turns = [_turn(word, ("shipped", "pending")[(k + t) % 2], 10 + 5 * k) for t, word in enumerate(asked)]
    messages = [m for turn in turns for m in turn]
    checklist = [_items(t, word) for t, word in enumerate(asked)]
    return {"uuid": f"shop-{k}", "messages": messages, "tools": [TOOL], "checklists": [checklist]}


def _turn(word, status, total):
    call = {"name": "get_order", "arguments": json.dumps({"order_id": f"#{word}"})}
    order = {"order_id": f"#{word}", "status": status, "total": total, "city": "oslo"}
    return [
        {"role": "user", "content": f"what about order {word}"},
        {
            "role": "assistant",
            "content": "<think>\nlook\n</think>\n\n",
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        },
        {"role": "tool", "content": json.dumps(order)},
        {"role": "assistant", "content": f"<think>\ntell\n</think>\n\norder #{word} to oslo is {status}"},
    ]


def _items(turn, word):
    look = {"tool": "get_order", "args": {"order_id": f"#{word}"}}
    told = {"kind": "says", "all": [{"seen": {**look, "path": "status"}}], "none": ["sorry"]}
    reply = "assistant.content.user_visible_reply"
    return [
        _item(turn, 0, 0.3, "assistant.tool_calls", {"kind": "called", **look}),
        _item(turn, 1, 0.3, reply, told),
        _item(turn, 2, 0.4, "tool.content", {"kind": "grounded"}),
    ]


def _item(turn, k, weight, focus, rule):
    place = {"turn": turn, "step": 0, "from": "user.content", "snippet": "order"}
    return {
        "id": f"C{k}",
        "evidence": [place],
        "focus_on": focus,
        "question": "Is it so?",
        "pass_condition": "It is.",
        "failure_examples": [],
        "required_for_next_turn": False,
        "dependence": [],
        "weight": weight,
        "extra_info": {"rule": json.dumps(rule)},
    }


def stage_rows(folder):
    (folder / "in").mkdir()
    rows = "".join(json.dumps(annotated_row(k)) + "\n" for k in range(12))
    (folder / "in/rows.jsonl").write_text(rows)
    data = {"source": "local", "uri": str(folder / "in"), "max_first_prompt_tokens": 700}
    return stage(parse({"data": data, "policy": {"kind": "bundled"}}), folder / "staged")


def test_such_rows_are_staged_with_their_rules_and_without_a_world(tmp_path):
    counts = stage_rows(tmp_path)["counts"]
    assert counts["kept"] == 12 and counts["forms"] == {"annotated": 12}
    for task in read_tasks(tmp_path / "staged/train.parquet"):
        assert task.world is None and all(item.rule for turn in task.checklist for item in turn)
        assert len(task.records) == len(task.checklist)  # REHEARSE is shown what the dialogue holds


@pytest.mark.verl
def test_two_steps_are_trained_from_staged_rows_without_a_world(tmp_path):
    stage_rows(tmp_path)
    tasks = tmp_path / "staged/train.parquet"
    steps, episodes = two_steps(tmp_path, tasks, group=3)
    assert any(s["loss/grad_norm"] > 0 for s in steps), "no step had anything to learn from"
    assert len(episodes) == 12 and {e.task_id for e in episodes} <= {t.id for t in read_tasks(tasks)}
    assert {g.role for e in episodes for g in e.generations} == {Role.ACT, Role.REHEARSE}
    assert not any(e.real_calls for e in episodes)
    assert all(v.answer is not Answer.UNSCORED for e in episodes for v in e.verdicts)
    assert len({e.reward for e in episodes}) > 1


def two_steps(folder, tasks, group):
    """What two steps of the laptop's training from the bundled policy say."""
    shutil.copytree(BUNDLED, folder / "start")
    base, work = load(ROOT / "sizes/laptop.yaml"), folder / "work"
    few = dataclasses.replace(base.train, steps=2, prompts=2, group=group, save_every=2, rolling=1, lr=1e-3)
    result = launch.train(
        dataclasses.replace(base, train=few), "envace", 1, tasks_file=tasks, start=folder / "start", work=work
    )
    assert result.steps == 2 and checkpoints.steps_saved(work) == [2]
    assert process.running(work.resolve()) == []
    steps = read_steps(work)
    assert [s["train/unscored"] for s in steps] == [0, 0] and all(s["act/rows"] for s in steps)
    return steps, episodes_of(work)


RULES = {
    "tool.content": {"kind": "grounded"},
    "assistant.tool_calls": {"kind": "called", "tool": "get_tide", "args": {"port": "Brest"}},
    "assistant.content.user_visible_reply": {"kind": "says", "none": ["sorry"]},
}


def with_rules(row):
    """A trap whose items a rule judges; their places and forms stay as odd as they were."""
    row = copy.deepcopy(row)
    holder, key = (
        (row, "checklists") if "tools" in row else (row["extra_info"]["interaction_kwargs"], "checklist_list")
    )
    as_text = isinstance(holder[key], str)
    variants = json.loads(holder[key]) if as_text else holder[key]
    for item in (i for items in variants[0] for i in items):
        item["extra_info"] = {"rule": json.dumps(RULES[item["focus_on"]])}
    holder[key] = json.dumps(variants) if as_text else variants
    return row


def stage_traps(folder):
    (folder / "in").mkdir()
    kept = [with_rules(t["row"]) for t in TRAPS if not t["expect"]]
    (folder / "in/traps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    data = {"source": "local", "uri": str(folder / "in"), "max_first_prompt_tokens": 700}
    return len(kept), stage(parse({"data": data, "policy": {"kind": "bundled"}}), folder / "staged")["counts"]


def test_every_kept_trap_can_be_judged_by_rules(tmp_path):
    n, counts = stage_traps(tmp_path)
    assert counts["kept"] == n > 15 and counts["rejected"] == 0
    tasks = read_tasks(tmp_path / "staged/train.parquet")
    assert all(item.rule for task in tasks for turn in task.checklist for item in turn)


@pytest.mark.heavy
@pytest.mark.verl
def test_two_steps_are_trained_from_the_traps_that_are_kept(tmp_path):
    stage_traps(tmp_path)
    tasks = tmp_path / "staged/train.parquet"
    _, episodes = two_steps(tmp_path, tasks, group=2)
    assert len(episodes) == 8 and {e.task_id for e in episodes} <= {t.id for t in read_tasks(tasks)}
    assert len({e.task_id for e in episodes}) == 4
    assert all(v.answer is not Answer.UNSCORED for e in episodes for v in e.verdicts)


def episodes_of(work):
    lines = [line for f in sorted(work.glob("episodes/*.jsonl")) for line in f.read_text().splitlines()]
    return [from_json(Episode, json.loads(line)) for line in lines]
