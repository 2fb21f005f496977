"""A two-turn task, a judge that reads a table, and shortcuts: what the rollout tests share."""

import asyncio
import json

from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams, parse, to_dict
from envace.config.method import Method
from envace.learn.sequences import generation_sequences
from envace.policy.scripted import ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.rollout.sources import EnvironmentSource
from envace.types import Answer, Item, Message, Observation, Record, Role, Source, Task, ToolCall, Verdict

RENDERER = ByteRenderer()
COMPACT, FULL = load_prompt_set("compact"), load_prompt_set("full")
PARAMS = RolloutParams(
    prompt_tokens=20_000, response_tokens=400, max_steps=6, max_calls=5, max_parallel=3, max_errors=2
)


def tool(name):
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


def item(id="C0", weight=1.0, required=False):
    return Item(
        id=id,
        question="?",
        pass_condition="",
        focus_on="assistant.tool_calls",
        weight=weight,
        required_for_next_turn=required,
    )


def record(turn, name, id, result):
    return Record(turn=turn, call=ToolCall(name=name, arguments={"id": id}), result=result)


RECORDS = (
    record(0, "get", "#a", {"id": "#a", "state": "new"}),
    record(0, "get", "#b", {"id": "#b", "state": "old"}),
    record(1, "drop", "#a", {"done": True}),
)
TASK = Task(
    id="t-0",
    prefix=(Message(role="system", content="desk"), Message(role="user", content="what about #a?")),
    user_turns=("then drop it",),
    tools=(tool("get"), tool("drop")),
    checklist=((item("C0", 0.25), item("C1", 0.75)), (item("C0"),)),
    records=RECORDS,
    source="test",
)


def arm_params(arm, switches, **rollout):
    """Parameters that train one arm of these switches, with these changes to `rollout`."""
    rest = {"eval": {"policies": ["start"]}, "tts": {"policy": "start"}, "fidelity": {"policies": ["start"]}}
    rollout = {**to_dict(PARAMS), **rollout}
    return parse({"train": {"runs": [f"{arm}-1"]}, "arms": {arm: switches}, "rollout": rollout, **rest})


def call(name, id="#a"):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'id': id}})}\n</tool_call>"


class TableJudge:
    """`TableJudge({(0, "C1"): "no"})`: every item is yes unless the table says otherwise."""

    def __init__(self, table=None):
        self.table, self.asked, self.seen = table or {}, [], []

    async def judge_turn(self, task, turn, messages):
        self.asked.append(turn)
        self.seen.append(messages)
        answers = ((i, self.table.get((turn, i.id), "yes")) for i in task.checklist[turn])
        return [Verdict(item_id=i.id, turn=turn, answer=Answer(a), reason="table") for i, a in answers]


class World:
    """Answers every call, and keeps the order in which they came."""

    def __init__(self, error=False):
        self.calls, self.error = [], error

    def call(self, call):
        self.calls.append(call)
        content = {"error": "no"} if self.error else {"n": len(self.calls)}
        return Observation(content=content, source=Source.ENVIRONMENT, error=self.error)


def two_roles(act, rehearse=lambda request: render_result({"of": request.call.arguments["id"]})):
    """A policy whose ACT texts are a list by step, and whose REHEARSE is a function."""
    script = act if callable(act) else lambda request: act[request.step]
    return ScriptedPolicy(lambda r: script(r) if r.role is Role.ACT else rehearse(r), RENDERER)


async def episode(
    policy, *, source=None, judge=None, method=None, params=PARAMS, task=TASK, name="e-0", **more
):
    """One episode; the source is rehearsal by the same policy unless a world or a source is given."""
    method = method or Method()
    if isinstance(source, World):
        source = EnvironmentSource(source)
    prompt_set = more.pop("prompt_set", COMPACT)
    source = source or RehearsalSource(policy, RENDERER, prompt_set, method, params)
    return await run_episode(
        task,
        policy=policy,
        source=source,
        renderer=RENDERER,
        judge=judge or TableJudge(),
        method=method,
        params=params,
        episode_id=name,
        group_id="g-0",
        seed=more.pop("seed", 5),
        prompt_set=prompt_set,
        **more,
    )


def play(policy, **more):
    return asyncio.run(episode(policy, **more))


def rows_of(episode, method):
    """What each generation earned, in order."""
    return [row for s in generation_sequences(episode, method) for row in s.rows]


def rehearse_messages(prompt_set, ctx, records, drop=0, **more):
    """The REHEARSE prompt as messages, after `drop` cuts."""
    return prompt_set.rehearsal(ctx, records, **more).messages(drop)
