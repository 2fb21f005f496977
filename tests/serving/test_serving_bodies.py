"""Requests are read or refused by name; replies carry calls, and what is no call stays text."""

import json

import pytest

from envace.serving import replies
from envace.serving.requests import ChatRequest, RequestRefused, TextRequest, read
from envace.types import Sampling, ToolCall

TOOL = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}
CALL = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "#kite"}}\n</tool_call>'


def chat(**more):
    return read(ChatRequest, {"model": "m", "messages": [USER], **more})


def test_a_plain_chat_takes_the_folders_sampling():
    asked, own = chat(), Sampling(temperature=0.7, top_k=20)
    assert asked.sampling(own) == own and (asked.limit, asked.stream, asked.stops) == (None, False, [])
    assert asked.chat_template_kwargs.enable_thinking is None and not asked.tools


def test_what_clients_send_is_read():
    sampling = {"temperature": 0, "seed": 3, "top_p": 0.5, "top_k": 0}
    switches = {"parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": True}}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    neutral = {"n": 1, "presence_penalty": 0.0, "logprobs": False, "response_format": {"type": "text"}}
    harmless = {"user": "u", "metadata": {}, "store": False, "stop_token_ids": None, "guided_json": None}
    more = {"tools": [TOOL], "tool_choice": "auto", "max_completion_tokens": 9, "max_tokens": 7, "stop": "x"}
    asked = chat(**sampling, **switches, **streamed, **neutral, **harmless, **more)
    assert asked.sampling(Sampling()) == Sampling(temperature=0, top_p=0.5, seed=3)
    assert (asked.limit, asked.stops, asked.stream, asked.stream_options.include_usage) == (
        9,
        ["x"],
        True,
        True,
    )
    assert not asked.parallel_tool_calls and asked.chat_template_kwargs.enable_thinking is True
    assert asked.offered() == [TOOL] and chat(tools=[TOOL], tool_choice="none").offered() == []


def test_a_history_with_calls_is_read():
    function = {"name": "get_order", "arguments": '{"order_id": "#kite"}'}
    call = {"id": "c1", "type": "function", "function": function}
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]
    history = [
        {"role": "developer", "content": parts},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "{}"},
        {"role": "assistant", "content": "done", "tool_calls": None, "refusal": None, "annotations": []},
    ]
    system, _, act, tool, _ = chat(messages=history).history()
    assert (system.role, system.content) == ("system", "be kind") and act.thinking == "hm"
    assert act.calls == (ToolCall(name="get_order", arguments={"order_id": "#kite"}),)
    assert tool.name == "get_order"
    function["arguments"] = ""
    assert chat(messages=history).history()[2].calls[0].arguments == {}


def said(**message):
    return {"messages": [{"role": "assistant", **message}]}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("n=2", {"n": 2}),
        ("tool_choice", {"tool_choice": "required"}),
        ("max_tokens", {"max_tokens": 0}),
        ("messages", {"messages": []}),
        ("role", {"messages": [{"role": "wizard", "content": ""}]}),
        (
            "content.*text: Field required",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        ),
        ("arguments", said(tool_calls=[{"function": {"name": "f", "arguments": "{bad"}}])),
        ("arguments", said(tool_calls=[{"function": {"name": "f", "arguments": "[]"}}])),
        ("tools", {"tools": [{"name": "f"}]}),
        ("other", {"chat_template_kwargs": {"other": 1}}),
        # wrong types
        ("stop", {"stop": 5}),
        ("stop", {"stop": [1]}),
        ("stream_options", {"stream_options": True}),
        ("tools", {"tools": 3}),
        ("chat_template_kwargs", {"chat_template_kwargs": 3}),
        ("tool_calls", said(tool_calls=3)),
        ("tool_call_id", {"messages": [{"role": "tool", "content": "{}", "tool_call_id": ["a"]}]}),
        ("function.name", said(tool_calls=[{"id": "c", "function": {"name": ["f"], "arguments": "{}"}}])),
        ("temperature", {"temperature": "hot"}),
        ("temperature", {"temperature": True}),
        ("messages", {"messages": {"role": "user"}}),
        ("content", {"messages": [{"role": "user", "content": 4}]}),
        # not served
        ("function_call", said(content=None, function_call={"name": "f", "arguments": "{}"})),
        *[
            (f"{name}=.* is not served here", {name: value})
            for name, value in {
                "guided_json": {"type": "object"},
                "guided_choice": ["a", "b"],
                "structured_outputs": {"json": {}},
                "response_format": {"type": "json_object"},
                "logprobs": True,
                "presence_penalty": 0.5,
                "stop_token_ids": [3],
                "min_tokens": 20,
                "bad_words": ["x"],
                "ignore_eos": True,
                "continue_final_message": True,
                "include_stop_str_in_output": True,
                "chat_template": "{{ 1 }}",
                "reasoning_effort": "high",
                "typical_p": 0.2,
                "unheard_of": 1,
            }.items()
        ],
    ],
)
def test_what_is_wrong_or_not_served_is_refused_by_name(field, wrong):
    with pytest.raises(RequestRefused, match=field) as refused:
        chat(**wrong)
    assert refused.value.status == 400
    with pytest.raises(RequestRefused):
        read(ChatRequest, [wrong])  # no object


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a"], ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])],
)
def test_prompts_are_text_or_ids_one_or_several(prompt, prompts):
    assert read(TextRequest, {"model": "m", "prompt": prompt}).prompts() == prompts


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], [1, "b"], [-1], 5])
def test_other_prompts_are_refused(prompt):
    with pytest.raises(RequestRefused, match="prompt"):
        read(TextRequest, {"model": "m", "prompt": prompt}).prompts()


def completion(text, finish="stop", tools=True):
    written = replies.WrittenText(text=text, finish=finish, prompt_tokens=5, tokens=7)
    return replies.chat_completion(written, "m", tools=tools)


def test_well_formed_calls_become_tool_calls():
    whole = completion(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}")
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Let me see."
    assert choice["message"]["reasoning_content"] == "hm"
    one, two = choice["message"]["tool_calls"]
    assert one["id"] != two["id"] and json.loads(one["function"]["arguments"]) == {"order_id": "#kite"}
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    assert len(replies.chat_message(f"{CALL}{CALL}", tools=True, one_call=True)["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {bad\n</tool_call>', True),
        ("<tool_call>{}", True),
        ("just text", True),
        ("", True),
        (CALL, False),  # without tools on offer
    ],
)
def test_what_is_no_call_stays_text_and_is_no_error(text, tools):
    choice = completion(text, "length", tools)["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": text}
    assert choice["finish_reason"] == "length"


def test_a_stream_puts_together_to_the_whole_reply():
    whole = completion(f"See.\n{CALL}")
    events = [e.decode().removeprefix("data: ").strip() for e in replies.stream(whole, True)]
    assert events[-1] == "[DONE]"
    *chunks, last, usage = [json.loads(e) for e in events[:-1]]
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert "".join(d.get("content") or "" for d in deltas) == "See."
    assert [d["tool_calls"][0]["index"] for d in deltas if "tool_calls" in d] == [0]
    assert last["choices"][0]["finish_reason"] == "tool_calls" and usage["usage"]["total_tokens"] == 12
    assert {c["id"] for c in (*chunks, last, usage)} == {whole["id"]}
