"""What a model server's answer says beyond its words: calls it could not read, tokens it has no room for."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from types import SimpleNamespace as Said

import pytest
import requests
from kit_bfcl import as_message
from kit_drivers import driver_of
from kit_server import Server, said
from kit_vita import BROKEN

from envace.bench.finmcp.run import Chat
from envace.bench.harness.answers import fewer, left_call
from envace.chat.calls import render_calls
from envace.io.chat_client import ChatClient, ChatOptions
from envace.serving.replies import chat_message
from envace.types import ToolCall

bfcl, tau2, vita = map(driver_of, ("bfcl", "tau2", "vita"))
LIMIT = "This model's maximum context length is {} tokens"
VLLM = (
    f"'max_tokens' or 'max_completion_tokens' is too large: 8192. {LIMIT.format(32768)} and your request has "
    "30000 input tokens (8192 > 32768 - 30000)."
)
VLLM_OLD = (
    f"{LIMIT.format(4096)}. However, you requested 9999 tokens (1807 in the messages, 8192 in the "
    "completion). Please reduce the length of the messages or completion."
)
VLLM_NEW = (
    f"{LIMIT.format(8192)}. However, you requested 4096 output tokens and your prompt contains at least 4097 "
    "input tokens, for a total of at least 8193 tokens."
)
FULL = f"{LIMIT.format(8192)}. However, your request has 9000 input tokens."
FULL_NEW = (
    f"{LIMIT.format(8192)}. However, you requested 0 output tokens and your prompt contains at least 8193 "
    "input tokens, for a total of at least 8193 tokens."
)
OURS = f"{LIMIT.format(1024)}. The prompt holds 1236: shorten the messages."


@pytest.mark.parametrize(
    ("refusal", "asked", "left"),
    [
        (VLLM, 8192, 2768),
        (VLLM_OLD, 8192, 2289),
        (VLLM_NEW, 4096, 2048),  # the prompt's length is a lower bound: half, and again
        (VLLM_NEW, 20, 0),  # at the end of halving
        (FULL, 4096, 0),
        (FULL_NEW, 4096, 0),
        (OURS, 4096, 0),
        ("temperature must be positive", 4096, 0),
        (VLLM, 0, 0),
    ],
)
def test_bug_24_a_refused_budget_shrinks_to_what_the_server_says_is_left(refusal, asked, left):
    assert fewer(refusal, asked) == left


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (BROKEN, True),
        ("I will look.\n<tool_call>", True),
        ("</tool_call>", True),
        ("<think>maybe <tool_call></think>Hello", False),
        ("<think>maybe <tool_call> and then the tokens ran out", False),
        ("Hello", False),
        (None, False),
    ],
)
def test_a_call_left_in_the_visible_text_is_seen(content, left):
    assert left_call(content) is left


def test_the_serving_layer_leaves_a_broken_call_in_the_text():
    message = chat_message(f"<think>\n\n</think>\n\n{BROKEN}", tools=True)
    assert "tool_calls" not in message and left_call(message["content"])


CALLS = [
    ToolCall(name="math.hypot", arguments={"x": 3, "y": 4.5, "unit": 'ünit <b>"q"</b>'}),
    ToolCall(name="sort", arguments={"list": [1, [2, {"a": None}]], "reverse": False, "key": "</tool_call>"}),
    ToolCall(name="now", arguments={}),
]


@pytest.mark.parametrize("calls", [CALLS, CALLS[:1], []])
def test_gorilla_1077_raw_text_and_json_are_the_same_to_bfcl(calls):
    """What the driver hands to BFCL, from a policy's text by the serving layer and from the JSON truth."""
    raw = "<think>\n\n</think>\n\n" + (render_calls(calls) or "Nothing to call.")
    texts = []
    for message in (chat_message(raw, tools=True), as_message("" if calls else "Nothing to call.", calls)):
        said, thinking = bfcl.spoken(_as_object(message))
        functions = [c["function"] for c in said.get("tool_calls", ())]
        called = [(f["name"], json.loads(f["arguments"])) for f in functions]
        texts.append((said["content"], called, thinking))
    assert texts[0] == texts[1] and [ToolCall(name=n, arguments=a) for n, a in texts[0][1]] == calls


def _as_object(message):
    calls = [Said(id=c["id"], function=Said(**c["function"])) for c in message.get("tool_calls", ())]
    return Said(content=message["content"], tool_calls=calls)


class Refused(Exception):
    pass


def small_server(limit: int):
    """Refuses what asks for more than `limit` tokens, as vLLM does; keeps what it was asked for."""
    asked: list[int] = []

    def answer(body):
        asked.append(body["max_tokens"])
        room = f"your request has {1000 - limit} input tokens"
        message = f"'max_tokens' is too large. {LIMIT.format(1000)} and {room}."
        return said("ok") if body["max_tokens"] <= limit else (400, {"error": {"message": message}})

    def create(**request):
        status, reply = answer(request)
        if status == 400:
            raise Refused(reply["error"]["message"])
        return reply

    return asked, answer, create


def test_bug_24_bfcl_asks_again_for_what_fits():
    asked, _, create = small_server(40)
    assert bfcl.fitting(create, {"max_tokens": 500}, Refused)["choices"] and asked == [500, 40]
    with pytest.raises(Refused):  # a prompt that leaves nothing
        bfcl.fitting(lambda **_: (_ for _ in ()).throw(Refused(FULL)), {"max_tokens": 500}, Refused)


def test_bug_24_tau2_asks_again_for_what_fits(monkeypatch):
    asked, _, create = small_server(40)
    for name in ("litellm", "tau2", "tau2.utils", "tau2.utils.llm_utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["litellm"].BadRequestError = Refused
    sys.modules["tau2"].utils = sys.modules["tau2.utils"]
    client = sys.modules["tau2.utils"].llm_utils = sys.modules["tau2.utils.llm_utils"]
    client.completion = create
    tau2.give_keys([{"model": "openai/m", "api_base": "http://h/v1", "variable": "NO_KEY"}], 1)
    assert client.completion(model="openai/m", api_base="http://h/v1", max_tokens=500)["choices"]
    assert asked == [500, 40]


def test_bug_24_vita_asks_again_for_what_fits(tmp_path):
    asked, answer, _ = small_server(40)
    with Server(answer, "m") as server:
        role = {"url": server.url + "/chat/completions", "model": "m", "key": "", "body": {"max_tokens": 500}}
        job = {"roles": {"agent": role}, "seed": 5, "send_seed": False}
        state = vita.State(tmp_path / "attempts.jsonl")
        wire = vita.Wire(requests, job, state)
        body = {"messages": [{"role": "user", "content": "hi"}]}
        state.watched(lambda **_: wire.post("agent", json=body))(task=Said(id="t"))
    assert asked == [500, 40] and json.loads((tmp_path / "attempts.jsonl").read_text())["problem"] == ""


def test_bug_24_finmcp_asks_again_for_what_fits():
    asked, answer, _ = small_server(40)

    async def ask(url):
        async with ChatClient(ChatOptions(model="m", servers={url: 1.0}), shorter=fewer) as client:
            chat = Chat(client, {"max_tokens": 500}, 0)
            return await chat.ask([{"role": "user", "content": "hi"}], [], "a")

    with Server(answer, "m") as server:
        assert asyncio.run(ask(server.url + "/chat/completions")).text == "ok"
    assert asked == [500, 40]
