"""Annotated rows of another pipeline, staged and trained on: no world answers, only the policy that rehearses."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from envace.data.stage import stage
from envace.data.store import read_tasks
from envace.engine import checkpoints, launch, process
from envace.engine.progress import read_steps
from envace.params import load, parse
from envace.policy.warmstart import BUNDLED
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
        {"role": "assistant", "content": "<think>\nlook\n</think>\n\n", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "content": json.dumps(order)},
        {"role": "assistant", "content": f"<think>\ntell\n</think>\n\norder #{word} to oslo is {status}"},
    ]  # fmt: skip


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
        "id": f"C{k}", "evidence": [place], "focus_on": focus, "question": "Is it so?", "pass_condition": "It is.",
        "failure_examples": [], "required_for_next_turn": False, "dependence": [], "weight": weight,
        "extra_info": {"rule": json.dumps(rule)},
    }  # fmt: skip


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
    shutil.copytree(BUNDLED, tmp_path / "start")
    base = load(ROOT / "sizes/laptop.yaml")
    few = dataclasses.replace(base.train, steps=2, prompts=2, group=3, save_every=2, rolling=1, lr=1e-3)
    tasks, work = tmp_path / "staged/train.parquet", tmp_path / "work"
    result = launch.train(
        dataclasses.replace(base, train=few), "envace", 1,
        tasks_file=tasks, start=tmp_path / "start", work=work,
    )  # fmt: skip
    assert result.steps == 2 and checkpoints.steps_saved(work) == [2]
    assert process.marked(work.resolve()) == []

    steps, episodes = read_steps(work), episodes_of(work)
    assert [s["train/unscored"] for s in steps] == [0, 0] and all(s["act/rows"] for s in steps)
    assert any(s["loss/grad_norm"] > 0 for s in steps), "no step had anything to learn from"
    assert len(episodes) == 12 and {e.task_id for e in episodes} <= {t.id for t in read_tasks(tasks)}
    assert {g.role for e in episodes for g in e.generations} == {Role.ACT, Role.REHEARSE}
    assert not any(e.real_calls for e in episodes)
    assert all(v.answer is not Answer.UNSCORED for e in episodes for v in e.verdicts)
    assert len({e.reward for e in episodes}) > 1


def episodes_of(work):
    lines = [line for f in sorted(work.glob("episodes/*.jsonl")) for line in f.read_text().splitlines()]
    return [from_json(Episode, json.loads(line)) for line in lines]
