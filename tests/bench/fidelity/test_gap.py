"""The collusion gap: known success on both sides of the same episodes."""

import asyncio

import pytest
from shelf_kit import ROOMY, player, shelf_task

from envace.bench.fidelity.gap import play_both, rows_of, summarise
from envace.chat.renderer import ByteRenderer
from envace.config.method import Method
from envace.judge import RuleJudge
from envace.judge.checklist import required_held
from envace.types import Answer, Item, StopReason, Verdict, replace

TASKS = [shelf_task(k, left=left) for k, left in enumerate((1, 2, 0))]


def play(policy, tasks=TASKS, trials=2, **changes):
    more = {
        "renderer": ByteRenderer(),
        "judge": RuleJudge(),
        "method": Method(),
        "params": ROOMY,
        "concurrency": 64,
        **changes,
    }
    return asyncio.run(play_both(policy, tasks, trials=trials, seed=5, temperature=1.0, **more))


def test_a_fabricating_policy_succeeds_in_rehearsal_and_shows_a_gap():
    played = play(player(lambda call: {"item": "kite", "left": 1}))
    rows = rows_of(TASKS, played)
    assert [(r["task"], r["trial"]) for r in rows] == [(t.id, k) for t in TASKS for k in range(2)]
    assert [r["rehearsed"] for r in rows] == [1.0] * 6
    assert [r["true"] for r in rows] == [1.0] * 4 + [
        0.0
    ] * 2  # nothing left of the third: the look-up is refused
    got = summarise(TASKS, played, rows, bootstrap=200)
    assert got["gap/rehearsed"].value == 1.0 and got["gap/true"].value == pytest.approx(2 / 3)
    assert got["gap/collusion"].value == pytest.approx(1 / 3)
    assert got["gap/collusion"].low == 0.0 and got["gap/collusion"].high == 1.0
    assert (got["gap/collusion"].calls, got["gap/collusion"].tasks) == (6, 3)
    # the field `left`: one state told, two true ones (the third look-up is truly refused); `item` repeats the
    # call
    assert got["gap/rehearsed_entropy"].value == 0.0 and got["gap/true_entropy"].value == 1.0
    assert got["gap/rehearsed_refusals"].value == 0.0
    assert got["gap/true_refusals"].value == pytest.approx(1 / 3)
    assert got["gap/grounded"].value == pytest.approx(1 / 3)  # the records say 1, 2 and 0


def test_both_sides_meet_the_same_seeds_and_only_one_the_world():
    asked = []

    def imagine(call):
        asked.append(call)
        return {"item": "kite", "left": 1}

    played = play(player(imagine))
    assert [e.seed for e in played["rehearsed"]] == [e.seed for e in played["true"]]
    assert len({e.seed for e in played["true"]}) == 6 and len(asked) == 6
    assert all(e.real_calls == () for e in played["rehearsed"])
    assert all(len(e.real_calls) == 1 for e in played["true"])
    assert {o.source.value for e in played["rehearsed"] for o in e.observations} == {"rehearsal"}


def test_a_pair_that_infrastructure_broke_counts_on_neither_side():
    played = play(player(lambda call: {"item": "kite", "left": 1}))
    lost = replace(played["rehearsed"][0], stop=StopReason.POLICY_FAILED)
    played = {**played, "rehearsed": [lost, *played["rehearsed"][1:]]}
    rows = rows_of(TASKS, played)
    assert rows[0]["true"] is rows[0]["rehearsed"] is rows[0]["success"] is None
    assert summarise(TASKS, played, rows, bootstrap=100)["gap/true"].calls == 5


def test_success_needs_the_required_items_of_every_turn_and_no_other():
    def item(name, required):
        return Item(
            id=name, question="", pass_condition="", focus_on="", weight=0.5, required_for_next_turn=required
        )

    task = replace(TASKS[0], checklist=((item("C0", True), item("C1", False)), (item("C0", True),)))

    def verdicts(*answers):
        places = [(0, "C0"), (0, "C1"), (1, "C0")]
        return [Verdict(item_id=i, turn=t, answer=a) for (t, i), a in zip(places, answers)]

    yes, no = Answer.YES, Answer.NO
    assert required_held(task, verdicts(yes, no, yes)) and not required_held(task, verdicts(yes, yes, no))
    assert not required_held(task, verdicts(yes, yes))  # the second turn was never reached
