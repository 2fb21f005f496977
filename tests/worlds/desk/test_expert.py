"""The expert and the floors, through the real episode loop."""

import asyncio
import json
import random

import pytest

from envace.bench.committed import (
    committed,
    end_state,
    floor_policies,
    floor_scores,
    true_episode,
)
from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams
from envace.config.method import PRESETS
from envace.errors import DataError
from envace.judge.base import RuleJudge
from envace.judge.rules import judge_item
from envace.policy.scripted import RandomPolicy, ScriptedPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import make_source
from envace.types import Answer, Observation, Source, StopReason, ToolCall, replace
from envace.worlds.desk.expert import next_step
from envace.worlds.desk.goals import CREDITS, SEATS, TOTALS
from envace.worlds.desk.tasks import SPLITS, generate
from envace.worlds.desk.tools import CITIES, DAYS, SPECS, STATES
from envace.worlds.desk.world import DeskWorld
from envace.worlds.expert import ExpertPolicy
from envace.worlds.registry import play, same_state

TASKS = [task for split in SPLITS for task in generate(7, split, 90)]


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
        told = [(m.role, m.content, m.calls) for m in episode.messages]
        assert [(r, c if r != "tool" else json.loads(c), k) for r, c, k in told] == [
            (m.role, m.content if m.role != "tool" else json.loads(m.content), m.calls)
            for m in task.reference
        ]


@pytest.mark.parametrize("preset", PRESETS)
def test_an_expert_that_rehearses_truthfully_scores_one_in_rehearsal_and_commits_nothing(preset):
    """Some of the tasks meet true refusals, which are answers under every preset."""
    tasks = TASKS[:40]
    renderer, judge, method = ByteRenderer(), RuleJudge(), PRESETS[preset]
    params = RolloutParams(prompt_tokens=65536, response_tokens=4096)
    expert, lead = ExpertPolicy(tasks, renderer), "\n" if method.grammar == "published" else ""
    policy = ScriptedPolicy(lambda request: lead + expert.speak(request), renderer)

    async def play(task):
        return await run_episode(
            task,
            policy=policy,
            source=make_source(task, method, policy, renderer, params),
            renderer=renderer,
            judge=judge,
            method=method,
            params=params,
            episode_id=task.id,
            group_id=task.id,
            seed=0,
            prompt_set=load_prompt_set("compact"),
        )

    for task in tasks:
        episode = asyncio.run(play(task))
        assert episode.reward == pytest.approx(1), (task.id, episode.stop, episode.verdicts)
        assert episode.real_calls == ()


def lie(rng, call):
    """A response of the right shape that owes nothing to the database."""
    spec = SPECS[call.name]
    if rng.random() < 0.2:
        return {"error": rng.choice([f"{spec.kind} not found", "no delivery there", "gone fishing"])}
    invented = {
        "status": rng.choice(STATES[spec.kind]),
        "state": rng.choice(STATES["account"]),
        "total": rng.choice(TOTALS),
        "city": rng.choice(CITIES),
        "credit": rng.choice(CREDITS),
        "order": "#ghost",
        "booking": "#phantom",
        "day": rng.choice(DAYS[:-1]),
        "seats": rng.choice(SEATS),
    }
    fields = {
        "order": "status total city",
        "account": "state credit order booking",
        "booking": "status day seats",
    }
    return {**call.arguments, **{f: invented[f] for f in fields[spec.kind].split()}}


class Liar:
    """A world of lies, for the one dialogue in the module that plays dialogues."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def call(self, call):
        return Observation(content=lie(self.rng, call), source=Source.ENVIRONMENT)


def play_on_lies(task, seed):
    goals = task.world["goals"]
    messages, _ = play(
        task.prefix,
        task.user_turns,
        lambda turn, seen: next_step(goals[turn], seen),
        Liar(f"{seed}/{task.id}"),
    )
    return messages


def test_right_acting_on_a_wrong_rehearsal_loses_the_grounding_item_only():
    ungrounded = 0
    for task in TASKS:
        messages = play_on_lies(task, 1)
        for turn, items in enumerate(task.checklist):
            for item in items:
                verdict = judge_item(item, task, turn, messages)
                if item.focus_on == "tool.content":
                    ungrounded += verdict.answer is Answer.NO
                else:
                    assert verdict.answer is Answer.YES, (task.id, turn, item, messages)
    assert ungrounded > 0.9 * len(TASKS)


def test_a_reply_that_names_every_value_tells_nothing():
    """A policy could otherwise pass without reading: each value the desk knows is in its reply."""
    everything = " ".join(
        str(v) for v in (*sum(STATES.values(), ()), *TOTALS, *CREDITS, *CITIES, *DAYS, *SEATS)
    )
    hid = 0
    for task in TASKS:
        last = task.reference[-1]
        spam = (*task.reference[:-1], replace(last, content=f"{last.content} {everything}"))
        turn = task.n_turns - 1
        if all(c.name != "close_account" for m in task.reference if m.turn == turn for c in m.calls):
            if "not found" not in last.content:
                hid += 1
                assert judge_item(task.checklist[turn][2], task, turn, spam).answer is Answer.NO, task.id
    assert hid > 200


@pytest.mark.parametrize(("split", "least", "most"), [("held", 0.05, 0.2), ("unseen", 0.15, 0.35)])
def test_floors_are_reproducible_and_fitted_on_tasks_of_their_own_split(split, least, most):
    tasks = generate(7, split, 120)
    scores, again = (asyncio.run(floor_scores(tasks, 3, floor_policies(tasks, 3))) for _ in range(2))
    assert scores == again
    success = {name: s["success"] for name, s in scores.items()}
    assert success["do_nothing"] == 0 and success["random"] < 0.05
    assert success["always_refuse"] <= success["blind"] and least <= success["blind"] <= most
    assert scores["do_nothing"]["checklist"] == 0 and 0 < scores["random"]["checklist"] < 0.2


def test_scripted_agents_answer_by_request_not_by_arrival():
    tasks = TASKS[:20]

    async def both():
        one = [await true_episode(t, RandomPolicy(5), 0) for t in tasks]
        shared = RandomPolicy(5)
        two = [await true_episode(t, shared, 0) for t in reversed(tasks)][::-1]
        return one, two

    one, two = asyncio.run(both())
    assert [e.messages for e in one] == [e.messages for e in two]
    assert asyncio.run(floor_scores(tasks, 0))["do_nothing"]["success"] == 0


def pending(task):
    return next(
        (i for i, o in task.world["orders"].items() if o["status"] == "pending" and o["city"] != "rome"), None
    )


def test_success_needs_the_end_state_of_the_expert():
    task = next(t for t in TASKS if set(t.tags) == {"look", "ok", "1_turns"} and pending(t))
    episode = asyncio.run(true_episode(task, ExpertPolicy(task), 0))
    assert same_state(end_state(task), DeskWorld.from_task(task)) and committed(task, episode)["success"] == 1
    meddling = ToolCall(name="change_address", arguments={"order_id": pending(task), "city": "rome"})
    assert committed(task, replace(episode, real_calls=(*episode.real_calls, meddling)))["success"] == 0


def test_an_unreached_turn_counts_zero():
    task = next(t for t in TASKS if t.n_turns == 2)
    episode = asyncio.run(true_episode(task, ExpertPolicy(task), 0))
    first = tuple(m for m in episode.messages if m.turn == 0)
    score = committed(task, replace(episode, messages=first))
    assert score["success"] == 0 and score["checklist"] == pytest.approx(0.5)


def test_a_broken_rule_is_an_error_not_a_failure():
    task = TASKS[0]
    episode = asyncio.run(true_episode(task, ExpertPolicy(task), 0))
    items = tuple(replace(i, rule={"kind": "nonsense"}) for i in task.checklist[0])
    with pytest.raises(DataError, match="rule_invalid"):
        committed(replace(task, checklist=(items, *task.checklist[1:])), episode)
