"""A simulator behind an endpoint plays the world: the identical prompt, named failures."""

import asyncio
from contextlib import ExitStack

import pytest
import rollout_kit
from chat_server_kit import completion, serving
from rollout_kit import PARAMS, RENDERER, TASK, arm_params, call, rows_of, two_roles

from envace.chat.contract import render_result
from envace.config import parse
from envace.errors import ParamsError
from envace.rollout.sources import make_source
from envace.types import Role, Source, StopReason, replace

ACTS = [call("get") + call("get", "#b"), "it is new", "bye"]
SETTINGS = {"model": "sim", "attempts": 2, "timeout_s": 5}


@pytest.fixture
def serve():
    """Starts a server that answers by (status, headers, text, seconds to wait), or by a function."""
    with ExitStack() as running:

        def made(answer):
            def reply(n):
                status, headers, text, wait = answer() if callable(answer) else answer
                return status, completion(text, finish_reason="stop"), wait, headers

            return running.enter_context(serving(reply))

        yield made


GOOD = (200, {}, render_result({"state": "new"}), 0)


def parsed(url, **settings):
    """Parameters whose arm `sim` has the simulator as its source."""
    return arm_params("sim", {"source": "simulator"}, simulator={"base_url": url, **SETTINGS, **settings})


async def episode(params, policy, name="e", source="simulator"):
    method = replace(params.resolved_method("sim"), source=source)
    source = make_source(TASK, method, policy, RENDERER, params.rollout)
    return await rollout_kit.episode(policy, source=source, method=method, params=params.rollout, name=name)


def play(params, acts=ACTS, **more):
    return asyncio.run(episode(params, two_roles(acts), **more))


def test_a_simulator_is_asked_exactly_what_the_policy_would_be(serve):
    server = serve(GOOD)
    policy, seen = two_roles(ACTS), []
    generate = policy.generate

    async def watched(request):
        seen.append(request)
        return await generate(request)

    policy.generate = watched
    params = parsed(server.url)
    asyncio.run(episode(params, policy, source="rehearse"))
    own = [
        [{"role": m.role, "content": m.content} for m in r.messages] for r in seen if r.role is Role.REHEARSE
    ]
    e = play(params)
    assert sorted(map(str, own)) == sorted(str(b["messages"]) for b in server.bodies) and len(own) == 2
    assert [o.source for o in e.observations] == [Source.SIMULATOR] * 2 and e.reward == 1.0
    assert e.observations[0].content == {"state": "new"} and e.real_calls == ()
    rows = rows_of(e, params.resolved_method("sim"))
    assert {r.role for r in rows} == {Role.ACT} and len(rows) == 3


def test_sampling_and_key_are_the_simulators_own(serve, monkeypatch):
    monkeypatch.setenv("SIM_KEY", "s3cret")
    server = serve(GOOD)
    more = {
        "key_env": "SIM_KEY",
        "temperature": 0.3,
        "top_p": 0.9,
        "max_tokens": 900,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
    }
    e = play(parsed(server.url, **more))
    body = server.bodies[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["model"]) == (0.3, 0.9, 900, "sim")
    assert body["chat_template_kwargs"] == {"enable_thinking": True} and "tools" not in body
    assert {h["authorization"] for h in server.headers} == {"Bearer s3cret"} and "s3cret" not in str(e)
    assert {g.sampling.temperature for g in e.generations} == {1.0}


def test_without_a_length_of_its_own_it_has_the_policys(serve):
    server = serve(GOOD)
    play(parsed(server.url))
    assert {body["max_tokens"] for body in server.bodies} == {PARAMS.response_tokens}


@pytest.mark.parametrize(
    ("answer", "settings", "words"),
    [
        ((500, {}, "", 0), {}, "HTTP 500"),
        ((404, {}, "", 0), {}, "HTTP 404"),
        ((200, {}, "", 3), {"timeout_s": 0.2}, "chat/completions does not serve 'sim'"),
        (GOOD, {"key_env": "NO_SUCH_KEY"}, "set the environment variable NO_SUCH_KEY"),
    ],
)
def test_a_simulator_that_cannot_be_used_ends_the_episode_with_its_address(
    answer, settings, words, serve, monkeypatch
):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    server = serve(answer)
    e = play(parsed(server.url, **settings))
    assert (e.stop, e.reward) == (StopReason.SOURCE_FAILED, None)
    assert words in e.stop_detail and server.url in e.stop_detail
    assert len(server.bodies) <= 4  # two calls, two attempts each


def test_episodes_share_connections_and_the_cap_on_requests(serve):
    server = serve((200, {}, render_result({"n": 1}), 0.02))
    params = parsed(server.url, concurrency=3)

    async def many():
        return await asyncio.gather(*(episode(params, two_roles(ACTS), name=f"e-{k}") for k in range(8)))

    assert {e.stop for e in asyncio.run(many())} == {StopReason.DONE}
    assert len(server.bodies) == 16 and server.most_in_flight <= 3 and len(server.connections) <= 3
    assert play(params).stop is StopReason.DONE  # another event loop, other connections


def test_an_arm_with_a_simulator_needs_one():
    with pytest.raises(ParamsError, match="rollout.simulator.base_url or .model is empty"):
        parsed("")
    params, method = parse({}), parse({}).resolved_method()
    with pytest.raises(ParamsError, match="name the server that plays the world"):
        make_source(TASK, replace(method, source="simulator"), None, RENDERER, params.rollout)
