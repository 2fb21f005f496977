"""The tiny start policy over the OpenAI protocol: calls, seeds, concurrency, a full context, streams."""

import asyncio
import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from envace.policy.card import BUNDLED
from envace.policy.local import LocalPolicy
from envace.serving.server import PolicyServer

ORDER = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
FUNCTION = {"name": "get_order", "description": "Read an order", "parameters": ORDER}
TOOL = {"type": "function", "function": FUNCTION}
ASK = [{"role": "user", "content": "Please cancel order #kite for me."}]
ORDERS = [{"role": "user", "content": "order " * 1200}]


@pytest.fixture(scope="module")
def policy():
    return LocalPolicy(BUNDLED, concurrency=8)


def talk(policy, conversation, **options):
    """Run `conversation(post, get)` against a server of its own."""

    async def go():
        server = TestServer(PolicyServer(policy, ["tiny", "gpt-judge"], **options).app())
        async with TestClient(server) as client:

            async def post(path="chat/completions", **body):
                base = {"model": "tiny", "max_tokens": 40, "temperature": 0}
                base |= {"messages": ASK, "tools": [TOOL]} if path.startswith("chat") else {}
                reply = await client.post(f"/v1/{path}", json=base | body)
                return reply.status, await (reply.text() if body.get("stream") else reply.json())

            async def get(path):
                reply = await client.get(path)
                return reply.status, await (reply.text() if path == "/health" else reply.json())

            return await conversation(post, get)

    return asyncio.run(go())


def content(reply):
    return reply[1]["choices"][0]["message"]["content"]


def test_a_tool_call_comes_as_a_tool_call_and_its_history_goes_on(policy):
    async def conversation(post, get):
        first = await post(tool_choice="auto")
        said = first[1]["choices"][0]["message"]
        result = {"role": "tool", "content": '{"status": "pending"}'}
        results = [{**result, "tool_call_id": call["id"]} for call in said["tool_calls"]]
        return first, await post(messages=[*ASK, said, *results])

    (status, reply), (later, answer) = talk(policy, conversation)
    choice = reply["choices"][0]
    assert status == later == 200 and choice["finish_reason"] == "tool_calls"
    function = choice["message"]["tool_calls"][0]["function"]
    assert function["name"] == "get_order" and json.loads(function["arguments"]) == {"order_id": "#kite"}
    assert reply["usage"]["prompt_tokens"] > 20 and "<tool_call>" not in (choice["message"]["content"] or "")
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_seeded_requests_are_answered_alike_alone_and_together(policy):
    async def conversation(post, get):
        def ask(i):
            return post(temperature=1.0, seed=i, tools=None, max_tokens=24)

        return [await ask(i) for i in range(4)], await asyncio.gather(*[ask(i) for i in range(4)])

    alone, together = (list(map(content, replies)) for replies in talk(policy, conversation))
    assert alone == together and len(set(alone)) > 1


def test_bug_24_a_budget_beyond_the_context_shrinks_to_the_room(policy):
    """A prompt that fits is answered, however much was asked for: what is left of the context is what it
    gets."""

    async def conversation(post, get):
        nearly = {"messages": [{"role": "user", "content": "order " * 960}], "tools": None, "seed": 1}
        held = (await post(**nearly, max_tokens=1))[1]["usage"]["prompt_tokens"]
        return held, [await post(**nearly, max_tokens=n) for n in (5000, 1024 - held)]

    held, (greedy, exact) = talk(policy, conversation)
    assert greedy[0] == 200 and 900 < held < 1024
    assert greedy[1]["usage"]["completion_tokens"] <= 1024 - held and content(greedy) == content(exact)


def test_a_budget_ends_with_length_and_a_full_context_with_400(policy):
    async def conversation(post, get):
        full = [await post(messages=ORDERS, max_tokens=n) for n in (40, None)]
        return await post(max_tokens=2), full

    short, full = talk(policy, conversation)
    assert short[1]["choices"][0]["finish_reason"] == "length" and short[1]["usage"]["completion_tokens"] == 2
    for status, reply in full:
        assert status == 400 and reply["error"]["code"] == 400
        assert "This model's maximum context length is 1024 tokens" in reply["error"]["message"]


def test_models_names_and_errors_in_openais_form(policy, monkeypatch):
    async def conversation(post, get):
        refused = [await post(model="x"), await post(n=3), await post(stop=5), await get("/no")]
        refused += [await get("/v1/models/x")]
        known = await get("/v1/models"), await get("/v1/models/gpt-judge")
        alias, health = await post(model="gpt-judge"), await get("/health")
        monkeypatch.setattr(policy.renderer, "decode", None)
        return refused, known, alias, health, await post()

    refused, (models, one), alias, health, bug = talk(policy, conversation)
    assert [m["id"] for m in models[1]["data"]] == ["tiny", "gpt-judge"] and one[1] == models[1]["data"][1]
    assert alias[0] == health[0] == 200 and alias[1]["model"] == "gpt-judge"
    assert [status for status, _ in refused] == [404, 400, 400, 404, 404]
    assert "'x' is not served" in refused[0][1]["error"]["message"]
    assert "stop" in refused[2][1]["error"]["message"]
    assert bug == (500, bug[1]) and bug[1]["error"]["message"] == "TypeError in the server"


def test_thinking_is_the_servers_unless_a_request_says(policy):
    async def conversation(post, get):
        asked = [await post(), await post(chat_template_kwargs={"enable_thinking": True})]
        return tuple(reply["usage"]["prompt_tokens"] for _, reply in asked)

    off, on = talk(policy, conversation)
    assert off > on  # the template writes an empty thought when it is off
    assert talk(policy, conversation, thinking=True) == (on, on)


def test_streams_and_completions(policy):
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    ids = policy.renderer.tokenizer.encode(prompt, add_special_tokens=False)

    async def conversation(post, get):
        stream = await post(stream=True, stream_options={"include_usage": True})
        prompts = (prompt, ids, [prompt, prompt[::2]])
        return (
            stream,
            await post("completions", prompt=[99999]),
            [await post("completions", prompt=one, max_tokens=20) for one in prompts],
        )

    (status, stream), unknown, (text, same, both) = talk(policy, conversation)
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert status == 200 and events[-1] == "[DONE]" and unknown[0] == 400
    assert any("tool_calls" in e for e in events) and '"finish_reason": "tool_calls"' in stream
    (written,) = (c["text"] for c in text[1]["choices"])
    assert [c["text"] for c in same[1]["choices"]] == [written] != [""]
    assert [c["index"] for c in both[1]["choices"]] == [0, 1] and both[1]["choices"][0]["text"] == written
    assert both[1]["usage"]["prompt_tokens"] > text[1]["usage"]["prompt_tokens"]


def test_a_stop_text_ends_the_answer_and_the_writing(policy):
    async def conversation(post, get):
        whole = await post(tools=None)
        return whole, await post(tools=None, stop=[content(whole)[5:8]])

    whole, cut = talk(policy, conversation)
    assert content(whole).startswith(content(cut)) and content(whole)[5:8] not in content(cut)
    assert cut[1]["choices"][0]["finish_reason"] == "stop"
    assert cut[1]["usage"]["completion_tokens"] < min(12, whole[1]["usage"]["completion_tokens"])
