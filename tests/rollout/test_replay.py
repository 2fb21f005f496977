"""A stored episode brings its prompts back, whoever answered its calls, and nothing else is taken for it."""

import asyncio
import json

import pytest
from rollout_kit import COMPACT, FULL, PARAMS, RENDERER, TASK, TableJudge, World, call, item, play, two_roles

from envace.config.method import PRESETS, Method
from envace.errors import DataError
from envace.rollout.replay import with_prompts
from envace.rollout.sources import make_source
from envace.types import Episode, Memory, Role, Sampling, StopReason, from_json, replace, to_json

ACTS = [
    call("get") + "\n" + call("get", "#b"),
    call("nowhere"),
    "it is new",
    "<tool_call>{",
    call("drop"),
    "dropped",
]


def stored(episode):
    """As training writes it: without prompts and log-probabilities, through JSON."""
    light = replace(
        episode, generations=tuple(replace(g, prompt_ids=(), logprobs=()) for g in episode.generations)
    )
    return from_json(Episode, json.loads(json.dumps(to_json(light))))


def back(episode, task=TASK, method=None, params=PARAMS, prompt_set=COMPACT, **more):
    return asyncio.run(with_prompts(
        episode, task, renderer=RENDERER, method=method or Method(), params=params, prompt_set=prompt_set, **more
    ))  # fmt: skip


def prompts(episode):
    return [(g.role, g.step, g.call_index, g.prompt_ids) for g in episode.generations]


@pytest.mark.parametrize("preset", ["authors", "paper", "envace"])
def test_every_prompt_of_both_roles_comes_back(preset):
    method = PRESETS[preset]
    e = play(two_roles(ACTS), method=method)
    assert {g.role for g in e.generations} == set(Role) and all(g.prompt_ids for g in e.generations)
    found = back(stored(e), method=method)
    assert prompts(found) == prompts(e)
    assert replace(found, generations=()) == replace(e, generations=())  # and nothing else is changed


def test_calls_that_a_world_answered_need_no_world():
    e = play(two_roles(ACTS), source=World())
    assert prompts(back(stored(e))) == prompts(e)


@pytest.mark.parametrize("mode", ["substitute", "bonus"])
def test_anchored_episodes_come_back(mode):
    method, policy = Method(anchor_every=2, anchor_mode=mode), two_roles(ACTS)
    source = make_source(TASK, method, policy, RENDERER, PARAMS)
    e = play(policy, source=source, method=method)
    assert e.counters["anchor/asked"] >= 1
    assert prompts(back(stored(e), method=method)) == prompts(e)


def test_an_episode_that_ended_early_comes_back_as_far_as_it_went():
    async def slow(request):
        if request.step == 2:
            await asyncio.sleep(30)
        return call("get") if request.role is Role.ACT else "<execution_result>{}</execution_result>"

    policy = two_roles(lambda request: "")
    policy.script = slow
    late = play(policy, params=replace(PARAMS, deadline_s=1.0))
    assert late.stop is StopReason.DEADLINE and prompts(back(stored(late))) == prompts(late)
    required = replace(TASK, checklist=((item(required=True),), (item(),)))
    unmet = play(two_roles(ACTS), task=required, judge=TableJudge({(0, "C0"): "no"}))
    assert unmet.stop is StopReason.REQUIRED_ITEM
    assert prompts(back(stored(unmet), task=required)) == prompts(unmet)


def test_sampling_and_memory_are_given_as_they_were():
    memory, sampling = (
        Memory(text="ask twice", n_attempts=1, tokens=2),
        Sampling(temperature=0.5, max_tokens=300),
    )
    e = play(two_roles(ACTS), memory=memory, sampling=sampling)
    assert prompts(back(stored(e), memory=memory, sampling=sampling)) == prompts(e)
    with pytest.raises(DataError, match="act generation of step 0 does not come back"):
        back(stored(e), memory=memory)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_set": FULL},
        {"params": replace(PARAMS, max_steps=2)},
        {"method": Method(on_tool_error="terminate")},
        {"task": replace(TASK, user_turns=())},
    ],
)
def test_what_it_was_not_played_with_is_refused(changes):
    e = play(two_roles(ACTS))
    with pytest.raises(DataError, match="was played with prompt set|does not come back"):
        back(stored(e), **changes)
