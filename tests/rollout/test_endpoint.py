"""A policy behind an OpenAI-compatible server, played by a transport that answers from a script."""

import asyncio
import json

import httpx
import pytest
from rollout_kit import RENDERER, TASK, World, call, play

from envace.chat.calls import parse_assistant
from envace.errors import EnvironmentUnready
from envace.policy.protocol import GenerationRequest
from envace.rollout.endpoint import EndpointPolicy
from envace.types import Endpoint, FailureReason, FinishReason, Role, Sampling, StopReason, ToolCall

URL = "http://model.test/v1"


def request():
    return GenerationRequest(
        role=Role.ACT,
        messages=TASK.prefix,
        tools=TASK.tools,
        prompt_ids=(1,),
        sampling=Sampling(seed=3),
        episode_id="e",
        task_id="t",
        turn=0,
        step=0,
    )


def reply(finish="stop", **message):
    return httpx.Response(
        200, json={"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish}]}
    )


def policy(*answers, key_env="", url=URL, extra_body=None, **more):
    """`answers`: responses or exceptions, in order; the last one repeats. Requests are kept on `.sent`."""
    sent, left = [], list(answers)

    def handle(http_request):
        sent.append(http_request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = EndpointPolicy(
        Endpoint(base_url=url, model="m", key_env=key_env, extra_body=extra_body or {}),
        RENDERER,
        backoff_s=0.001,
        transport=httpx.MockTransport(handle),
        **more,
    )
    made.sent = sent
    return made


def generate(made):
    async def go():
        async with made:
            return await made.generate(request())

    return asyncio.run(go())


def test_the_body_is_what_a_server_expects(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "s3cret")
    made = policy(reply(content="hi"), key_env="SOME_KEY")
    assert generate(made).text == "hi"
    body = json.loads(made.sent[0].content)
    assert (body["model"], body["max_tokens"], body["seed"], len(body["tools"])) == ("m", 512, 3, 2)
    assert made.sent[0].headers["authorization"] == "Bearer s3cret"
    assert str(made.sent[0].url) == f"{URL}/chat/completions"


def test_structured_calls_and_reasoning_become_the_text_every_parser_reads():
    calls = [{"id": "x", "type": "function", "function": {"name": "get", "arguments": '{"id": "#a"}'}}]
    text = generate(policy(reply(content=None, reasoning_content="hm", tool_calls=calls))).text
    parsed = parse_assistant(text)
    assert (parsed.thinking, parsed.calls) == ("hm", (ToolCall(name="get", arguments={"id": "#a"}),))


def test_broken_structured_arguments_stay_broken():
    calls = [{"function": {"name": "get", "arguments": '{"id": '}}]
    assert parse_assistant(generate(policy(reply(tool_calls=calls))).text).failure is FailureReason.BAD_JSON


@pytest.mark.parametrize("written", ["", None, "  ", "{}"])
def test_a_call_written_without_arguments_has_none(written):
    calls = [{"id": "c", "type": "function", "function": {"name": "list", "arguments": written}}]
    parsed = parse_assistant(generate(policy(reply("tool_calls", content=None, tool_calls=calls))).text)
    assert parsed.calls == (ToolCall(name="list", arguments={}),)


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "refusal": "I will not do that."},
        {"content": [{"type": "text", "text": "I will "}, {"type": "text", "text": "not do that."}]},
    ],
)
def test_a_refusal_and_parts_are_what_was_said(message):
    assert generate(policy(reply(**message))).text == "I will not do that."


def test_length_is_seen():
    assert generate(policy(reply("length", content="x"))).finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("answer", "tries", "words"),
    [
        (httpx.ConnectError("refused"), 4, "unreachable: ConnectError"),
        (httpx.Response(500, text="boom"), 4, "HTTP 500: boom"),
        (httpx.Response(404, text="no model m"), 1, "no model m"),
        (httpx.Response(200, text="<html>"), 4, "not a chat completion"),
        (httpx.Response(200, json={"error": {"message": "at its limit", "code": 429}}), 4, "at its limit"),
        (reply("content_filter", content=None), 1, "withheld an answer of 'm': content filter"),
    ],
)
def test_a_server_that_cannot_be_used_is_named(answer, tries, words):
    made = policy(answer)
    with pytest.raises(EnvironmentUnready, match=words) as caught:
        generate(made)
    assert URL in str(caught.value) and len(made.sent) == tries


def test_an_episode_over_an_endpoint():
    e = play(policy(reply(content=call("get")), reply(content="ok"), reply(content="bye")), source=World())
    assert (e.stop, e.reward) == (StopReason.DONE, 1.0)
