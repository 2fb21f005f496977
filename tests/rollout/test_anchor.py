"""Anchors: who is asked, what ACT sees, what the row of a checked rehearsal earns, and the ledger.

Everything goes from parameters through scripted episodes of a group to rows and advantages.
"""

import asyncio
import json

import pytest
import rollout_kit
from rollout_kit import PARAMS, RENDERER, TableJudge, arm_params, call, item, rows_of, tool

from envace.chat.contract import render_result
from envace.chat.transcript import agreement
from envace.errors import ParamsError
from envace.learn.advantage import advantages
from envace.learn.metrics import step_metrics
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.anchor import AnchoredSource
from envace.rollout.interfaces import CallContext
from envace.rollout.prompts import load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.rollout.sources import EnvironmentSource, make_source
from envace.types import Message, Observation, Record, Role, Source, StopReason, Task, ToolCall, replace
from envace.worlds import registry as worlds

ACT, REHEARSE = Role.ACT, Role.REHEARSE
PROMPTS = load_prompt_set("compact")


class Counter:
    """Tells which call it is: the world of these tests. Of `#x` it knows nothing."""

    made = []

    def __init__(self):
        self.calls = []
        Counter.made.append(self)

    @classmethod
    def from_task(cls, task):
        return cls()

    def state(self):
        return len(self.calls)

    def call(self, call):
        self.calls.append(call.arguments["id"])
        if call.arguments["id"] == "#x":
            return Observation(content={"error": "unknown"}, source=Source.ENVIRONMENT, error=True)
        return Observation(content={"n": len(self.calls), "ok": True}, source=Source.ENVIRONMENT)


@pytest.fixture(autouse=True)
def world(monkeypatch):
    monkeypatch.setattr(worlds, "_users", {"counter": Counter})
    monkeypatch.setattr(Counter, "made", [])
    return Counter.made


TASK = Task(
    id="t",
    prefix=(Message(role="user", content="go"),),
    tools=(tool("get"),),
    checklist=((item(),),),
    source="x",
    world={"kind": "counter"},
)
RECORDED = replace(
    TASK,
    world=None,
    records=(Record(turn=0, call=ToolCall(name="get", arguments={"id": "#2"}), result={"n": 7, "ok": True}),),
)


def arm(**switches):
    return arm_params("a", switches).resolved_method("a")


def play(method, acts, rehearse=lambda request: {"n": 1, "ok": True}, *, task=TASK, name="e", reward="yes"):
    """One episode; `acts`: what ACT writes; `rehearse(request)`: the response REHEARSE writes."""

    def speak(request):
        if request.role is ACT:
            return acts[request.step]
        said = rehearse(request)
        return said if isinstance(said, str) else render_result(said)

    policy, params = ScriptedPolicy(speak, RENDERER), replace(PARAMS, max_calls=20, max_steps=20)
    source = make_source(task, method, policy, RENDERER, params)
    judge = TableJudge({(0, "C0"): reward})
    return rollout_kit.play(
        policy, source=source, judge=judge, method=method, params=params, task=task, name=name, seed=1
    )


FIVE = [call("get", f"#{k}") for k in range(1, 6)] + ["bye"]


def asked(episode):
    return [c.arguments["id"] for c in episode.real_calls]


def test_substitute_shows_the_true_response_to_every_kth_call(world):
    e = play(arm(anchor_every=2, anchor_mode="substitute"), FIVE)
    assert [o.source for o in e.observations] == [
        Source.REHEARSAL,
        Source.ENVIRONMENT,
        Source.REHEARSAL,
        Source.ENVIRONMENT,
        Source.REHEARSAL,
    ]
    # the world has seen the anchored calls alone, so they are its first and second
    assert [o.content["n"] for o in e.observations] == [1, 1, 1, 2, 1]
    assert asked(e) == ["#2", "#4"] == world[0].calls
    assert [g.step for g in e.generations if g.role is REHEARSE] == [
        0,
        2,
        4,
    ]  # nothing rehearsed in its place
    assert (e.counters["anchor/asked"], e.counters["rehearse"], e.reward) == (2, 3, 1.0)
    assert all(g.agreement is None for g in e.generations)
    assert {r.reward for r in rows_of(e, arm(anchor_every=2))} == {1.0}


def test_bonus_keeps_the_rehearsed_response_and_pays_its_row_alone(world):
    """Call 2 agrees in full (1), call 4 in shape and one of two leaves (3/4); weight 0.2; everything else
    earns 1."""
    method = arm(anchor_every=2, anchor_mode="bonus", anchor_weight=0.2)
    e = play(method, FIVE)
    assert {o.source for o in e.observations} == {Source.REHEARSAL}
    assert [o.content["n"] for o in e.observations] == [1] * 5
    assert asked(e) == ["#2", "#4"] == world[0].calls
    rows = rows_of(e, method)
    assert [r.reward for r in rows if r.role is REHEARSE] == pytest.approx([1.0, 1.2, 1.0, 1.15, 1.0])
    assert [r.reward for r in rows if r.role is ACT] == [1.0] * 6
    # only agreements are kept in the episode: another weight needs no other rollout
    other = arm(anchor_every=2, anchor_mode="bonus", anchor_weight=1)
    assert [r.reward for r in rows_of(e, other) if r.role is REHEARSE] == [1, 2, 1, 1.75, 1]


GROUP = [call("get", "#1"), call("get", "#2"), "bye"]


@pytest.mark.parametrize(
    ("baseline", "rehearse", "act"),
    [
        # REHEARSE: a has 1 and 1.2, b 0, 0.15 and 0. Mean over rows 0.47, over episodes (1.1 + 0.05) / 2 =
        # 0.575
        ("generation", [0.53, 0.73, -0.47, -0.32, -0.47], [4 / 7] * 3 + [-3 / 7] * 4),
        ("trajectory", [0.425, 0.625, -0.575, -0.425, -0.575], [0.5] * 3 + [-0.5] * 4),
        ("leave_one_out", [0.95, 1.15, -1.1, -0.95, -1.1], [1.0] * 3 + [-1.0] * 4),
    ],
)
def test_the_bonus_enters_before_the_baseline_of_its_role(baseline, rehearse, act):
    method = arm(anchor_every=2, anchor_mode="bonus", anchor_weight=0.2, baseline=baseline)
    a = play(method, GROUP, name="a")
    longer = [*GROUP[:2], call("get", "#3"), "bye"]
    b = play(method, longer, lambda r: {"n": 9, "ok": True}, name="b", reward="no")
    rows, _ = advantages([r for e in (a, b) for r in rows_of(e, method)], method)
    assert [r.advantage for r in rows if r.role is REHEARSE] == pytest.approx(rehearse)
    assert [r.advantage for r in rows if r.role is ACT] == pytest.approx(act)


def test_without_anchors_no_true_source_is_made(world):
    e = play(arm(), FIVE)
    assert (world, e.real_calls, e.counters["rehearse"]) == ([], (), 5)


def test_records_are_the_true_source_of_a_task_without_a_world():
    e = play(arm(anchor_every=1), FIVE, task=RECORDED)
    assert [o.source is Source.RECORDED for o in e.observations] == [False, True, False, False, False]
    assert e.observations[1].content == {"n": 7, "ok": True} and asked(e) == ["#2"]
    assert (e.counters["anchor/asked"], e.counters["anchor/missed"], e.counters["rehearse"]) == (1, 4, 4)
    assert not any(name.startswith("failure/") for name in e.counters)
    e = play(arm(anchor_every=1, anchor_mode="bonus"), FIVE, task=RECORDED)
    assert [g.agreement for g in e.generations if g.role is REHEARSE] == [None, 0.75, None, None, None]
    assert asked(e) == ["#2"]


@pytest.mark.parametrize("mode", ["substitute", "bonus"])
def test_calls_of_one_message_reach_the_world_in_call_order(mode, world):
    """Even a world that takes its time, and the longer the earlier the call."""

    class Slow(Counter):
        async def call(self, call):
            await asyncio.sleep(0.03 / len(call.arguments["id"]))
            return super().call(call)

    method, policy = arm(anchor_every=1, anchor_mode=mode), ScriptedPolicy(lambda r: render_result({"n": 1}))
    source = AnchoredSource(
        RehearsalSource(policy, RENDERER, PROMPTS, method, PARAMS), EnvironmentSource(Slow()), method
    )
    ledger = []

    async def together():
        calls = (ToolCall(name="get", arguments={"id": "#" * n}) for n in (1, 2, 3))
        contexts = [
            CallContext(task=TASK, call=c, history=(), act_reply="", turn=0, step=0, number=n, ledger=ledger)
            for n, c in enumerate(calls, 1)
        ]
        await asyncio.gather(*map(source.answer, contexts))

    asyncio.run(together())
    assert world[0].calls == ["#", "##", "###"] == [c.arguments["id"] for c in ledger]


def test_a_refused_call_counts_as_a_call_and_is_not_asked(world):
    bad = call("get").replace('"#a"', "3")
    e = play(arm(anchor_every=2), [call("get", "#1"), bad, call("get", "#3"), call("get", "#4"), "bye"])
    assert asked(e) == ["#4"]


def test_true_refusals_are_errors_and_agree_with_nothing_but_refusals(world):
    acts = [call("get", "#x"), "bye"]
    e = play(arm(anchor_every=1), acts)
    assert e.observations[0].error and e.counters["errors"] == 1 and asked(e) == ["#x"]
    bonus = arm(anchor_every=1, anchor_mode="bonus")
    for said, agreed in (
        ({"n": 1}, 0.0),
        ({"error": "unknown"}, 1.0),
        ({"error": "gone"}, 0.5),
        ("prose", 0.0),
    ):
        e = play(bonus, acts, lambda r, said=said: said)
        assert [g.agreement for g in e.generations if g.role is REHEARSE] == [agreed], said


def test_an_unscored_episode_stays_unscored_whatever_its_rehearsals_agree_with():
    method = arm(anchor_every=1, anchor_mode="bonus")
    e = play(method, FIVE, reward="unscored")
    assert e.stop is StopReason.JUDGE_FAILED and {r.reward for r in rows_of(e, method)} == {None}
    assert len(e.real_calls) == 5  # what was asked was asked


def test_metrics_of_a_step_tell_of_anchors():
    method = arm(anchor_every=2, anchor_mode="bonus")
    episodes = [play(method, FIVE, name=name) for name in "ab"]
    rows, found = advantages([r for e in episodes for r in rows_of(e, method)], method)
    metrics = step_metrics(episodes, rows, found)
    assert (metrics["anchor/asked"], metrics["anchor/agreement"], metrics["train/real_calls"]) == (
        4,
        0.875,
        4,
    )


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"anchor_every": -1}, "anchor_every is -1, must be at least 0"),
        ({"anchor_every": 2.5}, "anchor_every is 2.5"),
        ({"anchor_every": True}, "anchor_every is True"),
        ({"anchor_mode": "both"}, "anchor_mode is 'both', must be one of substitute, bonus"),
        ({"anchor_weight": -0.1}, "anchor_weight is -0.1"),
        ({"anchor_every": 2, "source": "environment"}, "source environment rehearses nothing"),
        ({"anchor_every": 2, "source": "recorded"}, "source recorded rehearses nothing"),
        ({"anchor_every": 2, "anchor_mode": "bonus", "roles": ["act"]}, "pays trained REHEARSE rows"),
        ({"anchor_every": 2, "anchor_mode": "bonus", "source": "simulator"}, "pays trained REHEARSE rows"),
    ],
)
def test_switches_that_cannot_be_meant_are_refused(switches, words):
    with pytest.raises(ParamsError, match=words):
        arm(**switches)


@pytest.mark.parametrize(
    ("said", "truth", "expected"),
    [
        ({"state": "new", "n": 2}, {"state": "new", "n": 2}, 1.0),
        ({"state": "new", "n": 3}, {"state": "new", "n": 2}, 0.75),
        ({"n": 2}, {"state": "new", "n": 2}, 2 / 3),  # F1 2/3 of keys and of leaves
        ([], [], 1.0),
        ({"error": "a"}, {"n": 1}, 0.0),
        ([{"n": 1}, {"n": 1}], [{"n": 1}], (1 + 2 / 3) / 2),
    ],
)
def test_agreement_by_hand(said, truth, expected):
    assert agreement(said, truth) == pytest.approx(expected) == agreement(json.loads(json.dumps(said)), truth)
