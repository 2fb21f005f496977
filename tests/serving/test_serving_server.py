"""The tiny start policy over the OpenAI protocol: calls, seeds, concurrency, a full context, streams."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

import envace.policy
from envace.policy.local import LocalPolicy
from envace.serving.server import PolicyServer

START = Path(envace.policy.__file__).parent / "start"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "Read an order",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string"}},
            "required": ["order_id"],
        },
    },
}
ASK = [{"role": "user", "content": "Please cancel order #kite for me."}]


@pytest.fixture(scope="module")
def policy():
    return LocalPolicy(START, concurrency=8)


def talk(policy, conversation, **options):
    """Run `conversation(post, get)` against a server of its own."""

    async def go():
        async with TestClient(
            TestServer(PolicyServer(policy, ["tiny", "gpt-judge"], **options).app())
        ) as client:

            async def post(path="chat/completions", **body):
                base = {"model": "tiny", "max_tokens": 40, "temperature": 0}
                base |= {"messages": ASK, "tools": [TOOL]} if path.startswith("chat") else {}
                reply = await client.post(f"/v1/{path}", json=base | body)
                return reply.status, await (reply.text() if body.get("stream") else reply.json())

            return await conversation(post, client.get)

    return asyncio.run(go())


def test_a_tool_call_comes_as_a_tool_call(policy):
    async def conversation(post, get):
        return await post(tool_choice="auto")

    status, reply = talk(policy, conversation)
    choice = reply["choices"][0]
    assert status == 200 and choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_order" and json.loads(call["function"]["arguments"]) == {
        "order_id": "#kite"
    }
    assert reply["usage"]["prompt_tokens"] > 20 and "<tool_call>" not in (choice["message"]["content"] or "")


def test_seeded_requests_are_answered_alike_alone_and_together(policy):
    async def conversation(post, get):
        def ask(i):
            return post(temperature=1.0, seed=i, tools=None, max_tokens=24)

        return [await ask(i) for i in range(4)], await asyncio.gather(*[ask(i) for i in range(4)])

    alone, together = talk(policy, conversation)
    texts = [r["choices"][0]["message"]["content"] for _, r in alone]
    assert texts == [r["choices"][0]["message"]["content"] for _, r in together] and len(set(texts)) > 1


def test_bug_24_a_budget_beyond_the_context_shrinks_to_the_room(policy):
    """A prompt that fits is answered, however much was asked for: what is left of the context is what it
    gets.
    """

    async def conversation(post, get):
        nearly = [{"role": "user", "content": "order " * 960}]
        _, one = await post(messages=nearly, max_tokens=1, tools=None)
        held = one["usage"]["prompt_tokens"]
        return held, [
            await post(messages=nearly, max_tokens=n, tools=None, seed=1) for n in (5000, 1024 - held)
        ]

    held, ((status, greedy), (_, exact)) = talk(policy, conversation)
    assert status == 200 and 900 < held < 1024
    assert greedy["usage"]["completion_tokens"] <= 1024 - held
    assert greedy["choices"][0]["message"] == exact["choices"][0]["message"]


def test_a_budget_ends_with_length_and_a_full_context_with_400(policy):
    async def conversation(post, get):
        long = [{"role": "user", "content": "order " * 1200}]
        return await post(max_tokens=2), await post(messages=long), await post(messages=long, max_tokens=None)

    short, full, open_end = talk(policy, conversation)
    assert short[1]["choices"][0]["finish_reason"] == "length" and short[1]["usage"]["completion_tokens"] == 2
    for status, reply in (full, open_end):
        assert status == 400 and reply["error"]["code"] == 400
        assert "This model's maximum context length is 1024 tokens" in reply["error"]["message"]


def test_a_history_with_results_goes_on(policy):
    async def conversation(post, get):
        _, first = await post()
        said = first["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": c["id"], "content": '{"status": "pending"}'}
            for c in said["tool_calls"]
        ]
        return await post(messages=[*ASK, said, *results])

    status, reply = talk(policy, conversation)
    assert status == 200 and reply["choices"][0]["message"]["role"] == "assistant"


def test_models_names_and_errors(policy):
    async def conversation(post, get):
        models = await (await get("/v1/models")).json()
        return (
            models,
            (await get("/health")).status,
            await post(model="gpt-judge"),
            await post(model="x"),
            await post(n=3),
            await get("/no"),
        )

    models, health, alias, unknown, refused, nowhere = talk(policy, conversation)
    assert [m["id"] for m in models["data"]] == ["tiny", "gpt-judge"] and health == 200
    assert alias[0] == 200 and alias[1]["model"] == "gpt-judge"
    assert unknown[0] == 404 and "'x' is not served" in unknown[1]["error"]["message"]
    assert refused[0] == 400 and nowhere.status == 404


def test_thinking_is_the_servers_unless_a_request_says(policy):
    async def conversation(post, get):
        on = await post(chat_template_kwargs={"enable_thinking": True})
        return (await post())[1]["usage"]["prompt_tokens"], on[1]["usage"]["prompt_tokens"]

    off, on = talk(policy, conversation)
    assert off > on  # the template writes an empty thought when it is off
    assert talk(policy, conversation, thinking=True) == (on, on)


def test_streams_and_completions(policy):
    async def conversation(post, get):
        stream = await post(stream=True, stream_options={"include_usage": True})
        prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        text = await post("completions", prompt=prompt, max_tokens=20)
        ids = policy.renderer.tokenizer.encode(prompt, add_special_tokens=False)
        return (
            stream,
            text,
            await post("completions", prompt=ids, max_tokens=20),
            await post("completions", prompt=[99999]),
        )

    (status, stream), text, ids, unknown = talk(policy, conversation)
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert status == 200 and events[-1] == "[DONE]"
    assert any("tool_calls" in e for e in events) and '"finish_reason": "tool_calls"' in stream
    assert text[1]["choices"][0]["text"] == ids[1]["choices"][0]["text"] != "" and unknown[0] == 400


def test_stop_texts_end_an_answer(policy):
    async def conversation(post, get):
        whole = (await post(tools=None))[1]["choices"][0]["message"]["content"]
        return whole, await post(tools=None, stop=[whole[5:8]])

    whole, (_, cut) = talk(policy, conversation)
    content = cut["choices"][0]["message"]["content"]
    assert len(content) < len(whole) and cut["choices"][0]["finish_reason"] == "stop"
