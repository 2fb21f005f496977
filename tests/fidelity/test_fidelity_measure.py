"""Rehearsed against true responses: hand-made pairs with known scores, and the desk's own truth."""

import asyncio
import json

import pytest

from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer
from envace.desk.expert import ExpertPolicy
from envace.desk.tasks import generate
from envace.fidelity.measure import key_f1, key_paths, measure, row, scores
from envace.fidelity.pairs import Pair, choose, from_records, pairs_of, spoilt
from envace.method import Method
from envace.params import RolloutParams
from envace.rollout.policy import ScriptedPolicy
from envace.types import FailureReason, Message, Observation, Record, Source, ToolCall

ROOMY = RolloutParams(prompt_tokens=20000, response_tokens=2000)


def pair(truth, kind="reference"):
    call = ToolCall(name="get_order", arguments={"order_id": "#kite"})
    task = generate(1, "held", 1)[0]
    return Pair(task=task, turn=0, index=0, history=task.prefix, call=call, truth=truth, kind=kind)


def said(content, failure=None):
    error = isinstance(content, dict) and "error" in content
    return Observation(content=content, source=Source.REHEARSAL, error=error, failure=failure)


def test_scores_of_four_hand_made_rows():
    truth, refusal = {"id": "#kite", "total": 4}, {"error": "order not found"}
    rows = [
        row(pair(truth), "gold", said(dict(truth)), ""),
        row(pair(truth), "gold", said({"error": "no"}), ""),
        row(pair(refusal, "probe"), "gold", said({"id": "#kite", "total": 9}), ""),
        row(pair(refusal, "probe"), "gold", said({"error": "?"}, FailureReason.NO_RESULT_TAG), ""),
    ]
    got = scores(rows)
    assert got["gold/valid"] == 0.75 and got["gold/exact"] == 0.25
    assert got["gold/key_f1"] == 0.25  # 1, 0, 0 and an invalid response
    assert got["gold/error_agreement"] == 0.25
    assert got["gold/false_success"] == 0.5 and got["gold/false_refusal"] == 0.5
    assert got["gold/reference/exact"] == 0.5 and got["gold/probe/exact"] == 0.0
    assert got["gold/tool/get_order/exact"] == 0.25


def test_key_paths_and_their_f1():
    assert key_paths({"a": [{"b": 1}, {"c": 2}], "d": 3}) == {
        ("a",),
        ("a", "[]", "b"),
        ("a", "[]", "c"),
        ("d",),
    }
    assert key_f1({"a": 1, "b": 2}, {"a": 9, "c": 1}) == 0.5
    assert key_f1([], []) == 1.0 and key_f1({"a": 1}, []) == 0.0


def test_the_truthful_expert_is_fully_faithful():
    tasks = [t for t in generate(1, "held", 12)]
    renderer = ByteRenderer()
    got, rows = asyncio.run(
        measure(
            Replaying(tasks, renderer),
            tasks,
            renderer=renderer,
            method=Method(),
            params=ROOMY,
            limit=0,
            seed=3,
        )
    )
    assert got["up_to_turn/exact"] == got["none/exact"] == 1.0
    assert got["up_to_turn/false_success"] == 0.0
    assert {r["kind"] for r in rows} == {"reference", "probe"}
    assert any(r["true_error"] for r in rows)


class Replaying:
    """The expert in a fresh world that has been through the true calls before."""

    def __init__(self, tasks, renderer):
        self.tasks, self.renderer = tasks, renderer

    async def generate(self, request):
        name = request.task_id
        task = next(t for t in self.tasks if t.id == name)
        expert = ExpertPolicy(task, self.renderer)
        index = int(request.episode_id.rsplit("/", 1)[1])
        for before in pairs_of(task, 3)[:index]:
            if before.kind == "reference":
                expert._rehearse(task, _as(request, before.call))
        return await expert.generate(request)


def _as(request, call):
    import dataclasses

    return dataclasses.replace(request, call=call)


def test_a_policy_that_breaks_the_contract_scores_nothing():
    tasks = generate(1, "held", 3)
    got, rows = asyncio.run(
        measure(ScriptedPolicy(lambda r: "hello"), tasks, renderer=ByteRenderer(), method=Method(few_shot="none"),
                params=ROOMY, limit=5, seed=0)
    )  # fmt: skip
    assert got["none/valid"] == got["none/exact"] == got["none/error_agreement"] == 0.0
    assert len(rows) == 5 and {r["failure"] for r in rows} == {"no_result_tag"}


def test_records_are_shown_as_the_method_says_and_withheld_beside_it():
    tasks, prompts = generate(1, "held", 2), []

    def script(request):
        prompts.append((request.episode_id.split("/")[1], request.messages[-1].content))
        return render_result({"ok": True})

    asyncio.run(
        measure(
            ScriptedPolicy(script),
            tasks,
            renderer=ByteRenderer(),
            method=Method(),
            params=ROOMY,
            limit=4,
            seed=0,
        )
    )
    assert all(("records:" in text) == (mode == "up_to_turn") for mode, text in prompts)
    assert {mode for mode, _ in prompts} == {"up_to_turn", "none"}


def test_histories_end_before_the_call_and_hold_true_responses():
    for task in generate(1, "held", 6):
        for p in pairs_of(task, 0):
            assert p.call not in [c for m in p.history[-1:] for c in m.calls]
            reference = [m.content for m in task.reference]
            assert all(m.content in reference for m in p.history)


def test_the_choice_does_not_depend_on_the_order_of_tasks():
    tasks = generate(1, "held", 6)
    ids = [(p.task.id, p.index) for p in choose(tasks, 7, 5)]
    assert ids == [(p.task.id, p.index) for p in choose(tasks[::-1], 7, 5)] and len(ids) == 7


@pytest.mark.parametrize("seed", range(6))
def test_a_spoilt_call_differs_in_one_argument(seed):
    import random

    call = ToolCall(name="move", arguments={"order_id": "#kite", "city": "oslo", "n": 3})
    wrong = spoilt(call, random.Random(seed))
    assert sum(wrong.arguments[k] != v for k, v in call.arguments.items()) == 1
    assert spoilt(ToolCall(name="x", arguments={"n": 3}), random.Random(seed)) is None


def test_a_dialogue_rebuilt_from_records():
    prefix = (Message(role="user", content="hi"),)
    call = ToolCall(name="a", arguments={})
    got = from_records(
        prefix, ("more",), (Record(turn=0, call=call, result={"x": 1}), Record(turn=1, call=call, result=[]))
    )
    assert [(m.role, m.turn) for m in got] == [
        ("user", 0), ("assistant", 0), ("tool", 0), ("user", 1), ("assistant", 1), ("tool", 1)
    ]  # fmt: skip
    assert json.loads(got[2].content) == {"x": 1}
