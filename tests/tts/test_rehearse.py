"""Private rehearsal: no way to a true source, both modes, retry and fallback, the control path."""

import asyncio
import dataclasses
import gc
import inspect
import json
import types

import pytest

from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams, TTSParams
from envace.config.method import Method
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.rollout.sources import EnvironmentSource, RecordedSource
from envace.tts import memory as notes
from envace.tts.rehearse import EMPTY, Rehearsal, private_view, rehearse
from envace.types import Item, Message, Record, Role, Source, Task, ToolCall
from envace.worlds.registry import register


class Trap:
    """A world nobody may make, ask or look at."""

    made = []

    def __init__(self, *_):
        self.made.append(self)

    from_task = from_records = classmethod(lambda cls, _: cls())

    def call(self, call):
        raise AssertionError("a private try reached a world")

    state = call


register("trap", Trap)


def tool(name):
    parameters = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CALL = ToolCall(name="get_order", arguments={"order_id": "#kite"})
HIDDEN = ("SECRET-RESULT", "SECRET-RULE", "SECRET-TURN", "SECRET-STATE", "SECRET-REPLY")
TASK = Task(
    id="t",
    prefix=(Message(role="user", content="cancel kite"),),
    user_turns=("SECRET-TURN",),
    tools=(tool("get_order"), tool("cancel_order")),
    source="desk",
    checklist=((Item(id="C0", question="SECRET-RULE", pass_condition="", focus_on="", weight=1.0),),) * 2,
    records=(Record(turn=0, call=CALL, result={"status": "SECRET-RESULT"}),),
    world={"kind": "trap", "orders": "SECRET-STATE"},
    reference=(
        Message(role="user", content="cancel kite"),
        Message(role="assistant", content="SECRET-REPLY"),
    ),
)
GOOD_REVIEW = json.dumps({"success": 0.5, "risky": [], "next": ["get_order"]})
GOOD_PLAN = json.dumps({"plan": ["get_order", "cancel_order"], "avoid": []})
BUDGET = TTSParams(memory_tokens=400, feedback_tokens=200)


class Script:
    """Looks one order up, reads an imagined answer, replies; reviews and plans as told. Keeps its
    requests."""

    def __init__(self, reviews=(GOOD_REVIEW,), plans=(GOOD_PLAN,)):
        self.reviews, self.plans, self.seen = list(reviews), list(plans), []

    def __call__(self, request):
        self.seen.append(request)
        if request.role is Role.REHEARSE:
            return render_result({"order_id": "#kite", "status": "imaginary", "total": 4242})
        rules = request.messages[0].content
        if rules == notes.EVALUATE:
            return self.reviews.pop(0) if len(self.reviews) > 1 else self.reviews[0]
        if rules == notes.CONDENSE:
            return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        if request.step == 0:
            return '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "#kite"}}\n</tool_call>'
        return "order #kite is imaginary"

    def of(self, rules):
        return [r for r in self.seen if r.messages[0].content == rules]


def run(script, mode="parallel", n=2, **changes):
    renderer = ByteRenderer()
    return asyncio.run(
        rehearse(
            TASK,
            policy=ScriptedPolicy(script, renderer),
            renderer=renderer,
            mode=mode,
            n=n,
            method=Method(),
            prompt_set=load_prompt_set("compact"),
            **{"budget": BUDGET, "params": RolloutParams(prompt_tokens=6000, response_tokens=400), **changes},
        )
    )


def test_nothing_that_could_execute_is_passed_in_or_held():
    names = set(inspect.signature(rehearse).parameters) | {f.name for f in dataclasses.fields(Rehearsal)}
    assert names == set("task policy renderer budget mode n method params prompt_set seed".split())


def reachable(*roots):
    """Everything that can be had from some objects by attributes, items and keys."""
    seen, todo = {}, list(roots)
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, (type, types.FunctionType, types.ModuleType)):
            continue
        seen[id(x)] = x
        todo += gc.get_referents(x)
    return list(seen.values())


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_no_executor_record_checklist_or_world_can_be_reached(mode, monkeypatch):
    handed = []

    async def spy(task, **given):
        handed.append({"task": task, **{k: v for k, v in given.items() if k not in ("policy", "renderer")}})
        return await run_episode(task, **given)

    monkeypatch.setattr("envace.tts.rehearse.run_episode", spy)
    attempts, _ = run(Script(), mode=mode, n=3)
    assert len(attempts) == len(handed) == 3
    for given in handed:
        source = given.pop("source")
        assert type(source) is RehearsalSource
        given |= {
            "prompt_set": source.prompt_set,
            "source_method": source.method,
            "source_params": source.params,
        }
        found = reachable(given)
        assert not any(isinstance(x, (Trap, Record, Item, EnvironmentSource, RecordedSource)) for x in found)
        texts = [x for x in found if isinstance(x, str)]
        assert not any(secret in text for text in texts for secret in HIDDEN)
    assert Trap.made == []


def test_nothing_hidden_reaches_a_prompt():
    script = Script()
    run(script, n=3, mode="sequential")
    words = [m.content for r in script.seen for m in r.messages]
    assert words and not any(secret in text for text in words for secret in HIDDEN)


def test_the_guard_would_notice_a_hidden_thing():
    assert any(isinstance(x, Record) for x in reachable({"task": TASK}))
    assert not any(isinstance(x, Record) for x in reachable({"task": private_view(TASK)}))


def test_every_answer_is_rehearsed_and_none_is_real():
    attempts, memory = run(Script())
    assert [a.index for a in attempts] == [0, 1] and memory.n_attempts == 2
    for a in attempts:
        assert a.feedback_ok and a.feedback["next"] == ["get_order"]
        assert a.episode.real_calls == ()
        assert {o.source for o in a.episode.observations} == {Source.REHEARSAL}
        assert len(a.episode.messages) > len(TASK.prefix)
    assert len({a.episode.id for a in attempts}) == 2 and all(a.tokens > 0 for a in attempts)


def test_zero_tries_cost_nothing_and_leave_no_memory():
    script = Script()
    attempts, memory = run(script, n=0)
    assert (attempts, memory, script.seen) == ([], EMPTY, []) and memory.text == ""


def test_parallel_tries_know_nothing_of_each_other_and_sequential_ones_do():
    def shown(mode):
        script = Script()
        run(script, mode=mode)
        first_steps = [r for r in script.seen if r.role is Role.ACT and r.tools and r.step == 0]
        return [
            "imagined tries" in r.messages[0].content for r in sorted(first_steps, key=lambda r: r.episode_id)
        ]

    assert shown("parallel") == [False, False]
    assert shown("sequential") == [False, True]


def test_a_malformed_review_gets_one_more_chance():
    script = Script(reviews=["what a day", GOOD_REVIEW])
    attempts, _ = run(script, n=1)
    first, second = script.of(notes.EVALUATE)
    assert attempts[0].feedback_ok and len(second.messages) == len(first.messages) + 1
    assert "what a day" not in second.messages[-1].content
    assert second.sampling.temperature > first.sampling.temperature == 0.0


def test_a_review_malformed_twice_becomes_the_digest():
    script = Script(reviews=["what a day", "again"])
    attempts, memory = run(script, n=1)
    assert not attempts[0].feedback_ok and len(script.of(notes.EVALUATE)) == 2
    assert attempts[0].feedback == {"success": None, "risky": [], "next": ["get_order"]}
    assert "what a day" not in memory.text


def test_a_plan_malformed_twice_becomes_the_digest_and_says_so():
    attempts, memory = run(Script(plans=['{"plan": ["#kite"], "avoid": []}', "no"]))
    assert memory.fallback and memory.text.startswith("2 imagined tries\nplan: get_order(order_id)")


def test_prompts_stay_within_the_budget_by_leaving_old_answers_out():
    script = Script()
    run(script, n=1, params=RolloutParams(prompt_tokens=2300, response_tokens=400))
    assert all(len(r.prompt_ids) <= 2300 for r in script.seen)


def test_what_condensing_costs_is_counted_beside_what_it_wrote():
    script = Script()
    _, memory = run(script, n=1)
    [asked] = script.of(notes.CONDENSE)
    assert memory.cost_tokens == len(asked.prompt_ids) + len(GOOD_PLAN) + 1  # bytes, and the end of the turn
    assert memory.tokens == len(memory.text)
    twice = Script(plans=["no", GOOD_PLAN])
    assert run(twice, n=1)[1].cost_tokens > memory.cost_tokens and len(twice.of(notes.CONDENSE)) == 2


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="parallel or sequential"):
        run(Script(), mode="tree")
