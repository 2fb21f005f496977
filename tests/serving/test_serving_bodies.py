"""Requests are read or refused by name; replies carry calls, and what is no call stays text."""

import json

import pytest

from envace.serving import replies
from envace.serving.requests import RequestRefused, read_chat, read_text
from envace.types import Sampling, ToolCall

TOOL = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}


def body(**more):
    return {"model": "m", "messages": [USER], **more}


def test_a_plain_chat_takes_the_folders_sampling():
    asked = read_chat(body(), Sampling(temperature=0.7, top_k=20))
    assert (
        asked.settings.sampling.temperature,
        asked.settings.sampling.top_k,
        asked.settings.max_tokens,
        asked.settings.stream,
    ) == (
        0.7,
        20,
        None,
        False,
    )
    assert asked.thinking is None and not asked.tools


def test_what_clients_send_is_read():
    asked = read_chat(
        body(
            tools=[TOOL],
            tool_choice="auto",
            temperature=0,
            seed=3,
            max_completion_tokens=9,
            top_p=0.5,
            stop="x",
            stream=True,
            stream_options={"include_usage": True},
            parallel_tool_calls=False,
            n=1,
            presence_penalty=0.0,
            user="u",
            logprobs=False,
            response_format={"type": "text"},
            chat_template_kwargs={"enable_thinking": True},
        ),
        Sampling(),
    )
    assert (
        asked.settings.sampling == Sampling(temperature=0, top_p=0.5, seed=3)
        and asked.settings.max_tokens == 9
    )
    assert (
        asked.settings.stop == ("x",)
        and asked.settings.usage
        and asked.one_call
        and asked.thinking is True
        and asked.tools == (TOOL,)
    )
    assert read_chat(body(tools=[TOOL], tool_choice="none"), Sampling()).tools == ()


def test_a_history_with_calls_is_read():
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_order", "arguments": '{"order_id": "#kite"}'},
    }
    history = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "{}"},
        {"role": "assistant", "content": "done", "tool_calls": None},
    ]
    system, _, act, tool, _ = read_chat(body(messages=history), Sampling()).messages
    assert (system.role, system.content) == ("system", "be kind") and act.thinking == "hm"
    assert (
        act.calls == (ToolCall(name="get_order", arguments={"order_id": "#kite"}),)
        and tool.name == "get_order"
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n": 2}, "n=2"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logprobs": True}, "logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "no text"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}]}
                ]
            },
            "tool call",
        ),
        ({"tools": [{"name": "f"}]}, "a tool must be"),
        ({"chat_template_kwargs": {"other": 1}}, "other"),
        ({"stop": [1]}, "stop"),
    ],
)
def test_what_is_not_served_is_refused_by_name(wrong, says):
    with pytest.raises(RequestRefused, match=says):
        read_chat(body(**wrong), Sampling())


def test_prompts_are_text_or_ids():
    assert read_text({"model": "m", "prompt": ["a"]}, Sampling()).prompt == "a"
    assert read_text({"model": "m", "prompt": [[1, 2]]}, Sampling()).prompt == (1, 2)
    assert read_text({"model": "m", "prompt": [1, 2]}, Sampling()).prompt == (1, 2)
    for bad in (None, "", [], ["a", "b"], [1, "b"]):
        with pytest.raises(RequestRefused, match="prompt"):
            read_text({"model": "m", "prompt": bad}, Sampling())


CALL = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "#kite"}}\n</tool_call>'


def written(text: str, finish: str = "stop") -> replies.WrittenText:
    return replies.WrittenText(text=text, finish=finish, prompt_tokens=5, tokens=7)


def test_well_formed_calls_become_tool_calls():
    whole = replies.chat_completion(
        written(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}"), "m", tools=True
    )
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Let me see."
    assert choice["message"]["reasoning_content"] == "hm"
    ids = [c["id"] for c in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {
        "order_id": "#kite"
    }
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@pytest.mark.parametrize(
    "text", ['<tool_call>\n{"name": "f", "arguments": {bad\n</tool_call>', "<tool_call>{}", "just text"]
)
def test_what_is_no_call_stays_text_and_is_no_error(text):
    choice = replies.chat_completion(written(text), "m", tools=True)["choices"][0]
    assert (
        choice["message"]["content"] == text
        and "tool_calls" not in choice["message"]
        and choice["finish_reason"] == "stop"
    )


def test_without_tools_on_offer_a_call_is_text():
    choice = replies.chat_completion(written(CALL, "length"), "m", tools=False)["choices"][0]
    assert choice["message"]["content"] == CALL and choice["finish_reason"] == "length"


def test_an_empty_answer_and_a_single_call_are_as_asked():
    assert replies.chat_message("", tools=True)["content"] == ""
    assert len(replies.chat_message(f"{CALL}{CALL}", tools=True, one_call=True)["tool_calls"]) == 1


def test_a_stream_puts_together_to_the_whole_reply():
    whole = replies.chat_completion(written(f"See.\n{CALL}"), "m", tools=True)
    events = [e.decode().removeprefix("data: ").strip() for e in replies.stream(whole, True)]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(e) for e in events[:-1]]
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == "See."
    assert [d["tool_calls"][0]["index"] for d in deltas if "tool_calls" in d] == [0]
    assert (
        chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
        and chunks[-1]["usage"]["total_tokens"] == 12
    )
    assert {c["id"] for c in chunks} == {whole["id"]}
