"""Rehearsed against true responses: hand-made pairs with known scores, and a small world's own truth."""

import asyncio
import json
import random

import pytest
from shelf_kit import ROOMY, call, player, shelf_task

from envace.bench.fidelity.measure import measure, row
from envace.bench.fidelity.pairs import Pair, choose, from_records, pairs_of, recorded, spoilt
from envace.bench.fidelity.scores import Score, summarise
from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer
from envace.config.method import Method
from envace.policy.scripted import ScriptedPolicy
from envace.types import FailureReason, Message, Observation, Record, Source, ToolCall, replace

TRUTH, REFUSAL = {"item": "kite", "left": 3}, {"error": "not here"}


def pair(k, truth, kind="reference"):
    task = shelf_task(k)
    return Pair(
        task=task, turn=0, index=0, history=task.prefix, call=call("look", "kite"), truth=truth, kind=kind
    )


def said(content, failure=None):
    error = isinstance(content, dict) and "error" in content
    return Observation(content=content, source=Source.REHEARSAL, error=error, failure=failure)


def rehearse_all(policy, tasks, **changes):
    more = {"renderer": ByteRenderer(), "method": Method(), "params": ROOMY, "limit": 0, "seed": 0, **changes}
    return asyncio.run(measure(policy, tasks, **more))


def values(rows):
    return {name: s.value for name, s in summarise(rows, bootstrap=100).items()}


def test_scores_of_four_hand_made_rows():
    shown = 'look {"item": "kite"}'
    rows = [
        row(pair(0, TRUTH), "gold", said(dict(TRUTH)), "", shown),
        row(pair(1, TRUTH), "gold", said({"error": "no"}), "", shown),
        row(pair(2, REFUSAL, "probe"), "gold", said({"item": "kite", "left": 9}), "", shown),
        row(pair(3, REFUSAL, "probe"), "gold", said({"error": "?"}, FailureReason.NO_RESULT_TAG), "", shown),
    ]
    got = values(rows)
    assert got["gold/valid"] == 0.75 and got["gold/exact"] == 0.25
    assert got["gold/shape"] == 0.25  # 1, 0, 0 and an invalid response
    assert got["gold/verdict"] == 0.25
    assert got["gold/grounded"] == 0.5  # the item was shown: reproduced, not; the refusals ground nothing
    assert got["gold/grounded_share"] == 0.25  # 1/2, 1/2, 0, 0
    assert got["gold/false_success"] == 0.5 and got["gold/false_refusal"] == 0.5
    assert got["gold/reference/exact"] == 0.5 and got["gold/probe/exact"] == 0.0
    assert got["gold/tool/look/exact"] == 0.25
    assert got["gold/recorded/exact"] == 0.5  # the two refusals are on no record


def test_intervals_resample_tasks_and_say_how_many():
    rows = [row(pair(0, TRUTH), "gold", said(x), "") for x in (TRUTH, TRUTH, {"left": 1})]
    rows += [row(pair(1, TRUTH), "gold", said({"left": 1}), "")]
    got = summarise(rows, bootstrap=500)["gold/exact"]
    assert got == Score(value=pytest.approx(1 / 3), low=0.0, high=pytest.approx(2 / 3), calls=4, tasks=2)
    alone = summarise(rows[:3], bootstrap=100)["gold/exact"]
    assert (alone.low, alone.high, alone.calls, alone.tasks) == (None, None, 3, 1)


def test_a_truthful_policy_is_fully_faithful_and_a_fixed_one_is_not():
    tasks = [shelf_task(k, left=k + 1) for k in range(3)]

    class Truthful:
        async def generate(self, request):
            task = next(t for t in tasks if t.id == request.task_id)
            told = {"item": "kite", "left": task.world["stock"]["kite"]}
            content = told if request.call.arguments["item"] == "kite" else REFUSAL
            return await ScriptedPolicy(lambda r: render_result(content)).generate(request)

    got = values(rehearse_all(Truthful(), tasks))
    assert got["up_to_turn/exact"] == got["none/exact"] == 1.0 and got["none/false_success"] == 0.0
    fixed = values(rehearse_all(player(lambda c: {"item": "kite", "left": 1}), tasks))
    assert fixed["up_to_turn/reference/exact"] == pytest.approx(1 / 3)  # shelf-0 has one
    assert fixed["up_to_turn/probe/exact"] == 0.0 and fixed["up_to_turn/false_success"] == 1.0
    # all three recorded look-ups can be copied from their record, and copying is exact there
    assert fixed["up_to_turn/recorded/copy/exact"] == fixed["up_to_turn/recorded/grounded_share"] == 1.0
    assert fixed["none/recorded/grounded_share"] == 0.5  # only the item stands in the call
    assert fixed["up_to_turn/majority/verdict"] == 0.5  # of other tasks, answers and refusals tie: it answers


def test_a_policy_that_breaks_the_contract_scores_nothing():
    rows = rehearse_all(ScriptedPolicy(lambda r: "hello"), [shelf_task(k) for k in range(3)], limit=5)
    own = [r for r in rows if r["by"] == "policy"]
    got = values(own)
    assert got["none/valid"] == got["none/exact"] == got["none/verdict"] == got["none/grounded"] == 0.0
    assert len(own) == 10 and {r["failure"] for r in own} == {"no_result_tag"}


def test_records_are_shown_as_the_method_says_and_withheld_beside_it():
    prompts = []

    def script(request):
        prompts.append((request.episode_id.split("/")[1], request.messages[-1].content))
        return render_result({"ok": True})

    rows = rehearse_all(ScriptedPolicy(script), [shelf_task(k) for k in range(2)])
    assert all(("records:" in text) == (mode == "up_to_turn") for mode, text in prompts)
    assert {mode for mode, _ in prompts} == {"up_to_turn", "none"}
    for r in rows:
        assert ('"left": 3' in r["shown"]) == (r["few_shot"] == "up_to_turn")


def test_pairs_are_the_reference_calls_and_a_spoilt_one_each():
    task = shelf_task(0)
    probe, reference = pairs_of(task, 0)
    assert (probe.kind, probe.truth, recorded(probe)) == ("probe", REFUSAL, False)
    assert (reference.kind, reference.truth, recorded(reference)) == ("reference", TRUTH, True)
    assert all(p.history == task.prefix for p in (probe, reference))
    assert not recorded(
        replace(reference, truth={"item": "kite", "left": 2})
    )  # the record tells another state


def test_a_spoilt_call_changes_nothing_for_the_calls_after_it():
    task = shelf_task(0)
    taken = [call("take", "kite"), call("look", "kite")]
    dialogue = list(task.prefix)
    for c in taken:
        dialogue += [
            Message(role="assistant", content="", calls=(c,)),
            Message(role="tool", content="{}", name=c.name),
        ]
    got = [p.truth for p in pairs_of(replace(task, reference=tuple(dialogue)), 0) if p.kind == "reference"]
    assert got == [{"taken": "kite"}, {"item": "kite", "left": 2}]


def test_the_choice_does_not_depend_on_the_order_of_tasks():
    tasks = [shelf_task(k) for k in range(6)]
    ids = [(p.task.id, p.index) for p in choose(tasks, 7, 5)]
    assert ids == [(p.task.id, p.index) for p in choose(tasks[::-1], 7, 5)] and len(ids) == 7


@pytest.mark.parametrize("seed", range(6))
def test_a_spoilt_call_differs_in_one_argument(seed):
    whole = ToolCall(name="move", arguments={"order_id": "#kite", "city": "oslo", "n": 3})
    wrong = spoilt(whole, random.Random(seed))
    assert sum(wrong.arguments[k] != v for k, v in whole.arguments.items()) == 1
    assert spoilt(ToolCall(name="x", arguments={"n": 3}), random.Random(seed)) is None
    only_city = spoilt(whole, random.Random(seed), lambda c: c.arguments["order_id"] == "#kite")
    assert only_city.arguments["city"] in ("slo", "ools")


def test_a_dialogue_rebuilt_from_records():
    prefix = (Message(role="user", content="hi"),)
    made = ToolCall(name="a", arguments={})
    got = from_records(
        prefix, ("more",), (Record(turn=0, call=made, result={"x": 1}), Record(turn=1, call=made, result=[]))
    )
    assert [(m.role, m.turn) for m in got] == [
        ("user", 0),
        ("assistant", 0),
        ("tool", 0),
        ("user", 1),
        ("assistant", 1),
        ("tool", 1),
    ]
    assert json.loads(got[2].content) == {"x": 1}
