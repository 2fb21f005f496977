"""The tool-call grammar as a table, the bugs others shipped included."""

import pytest

from envace.chat.calls import parse_assistant, render_calls
from envace.types import FailureReason, ToolCall

GET = '{"name": "get", "arguments": {"id": "#a"}}'
PUT = '{"name": "put", "arguments": {}}'
get, put = ToolCall(name="get", arguments={"id": "#a"}), ToolCall(name="put", arguments={})


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ("hello", [], "hello"),
        (f"<tool_call>\n{GET}\n</tool_call>", [get], ""),
        (f"<tool_call>{GET}</tool_call>", [get], ""),
        (f"wait\n<tool_call> {GET} </tool_call>\n<tool_call>{PUT}</tool_call>", [get, put], "wait"),
        (f"<tool_call>[{GET}, {PUT}]</tool_call>", [get, put], ""),
        ('<tool_call>{"name": "put", "parameters": {}}</tool_call>', [put], ""),
        ("<think>plan</think>done", [], "done"),
        ("plan the prompt opened</think>\ndone", [], "done"),
    ],
)
def test_well_formed_messages(text, calls, content):
    reply = parse_assistant(text)
    assert (list(reply.calls), reply.content, reply.failure) == (calls, content, None)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", FailureReason.EMPTY_OUTPUT),
        ("<think>only this</think>\n", FailureReason.EMPTY_OUTPUT),
        ("<think>never closed", FailureReason.EMPTY_OUTPUT),
        ("<tool_call>" + GET, FailureReason.NO_CALL_FOUND),
        (GET + "</tool_call>", FailureReason.NO_CALL_FOUND),
        ("<tool_call>[]</tool_call>", FailureReason.NO_CALL_FOUND),
        ("<tool_call></tool_call>", FailureReason.BAD_JSON),
        ("<tool_call>get(#a)</tool_call>", FailureReason.BAD_JSON),
        ('<tool_call>{"name": "get", "arguments": {"n": NaN}}</tool_call>', FailureReason.BAD_JSON),
        ('<tool_call>{"name": "get", "arguments": {"n": 1e999}}</tool_call>', FailureReason.BAD_JSON),
        ('<tool_call>{"name": "get", "name": "put", "arguments": {}}</tool_call>', FailureReason.BAD_JSON),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", FailureReason.BAD_JSON),
        (f"<tool_call>{GET} and more</tool_call>", FailureReason.BAD_JSON),
        ('<tool_call>"get"</tool_call>', FailureReason.NO_ARGUMENTS),
        ('<tool_call>{"name": "get"}</tool_call>', FailureReason.NO_ARGUMENTS),
        ('<tool_call>{"name": "get", "arguments": "{}"}</tool_call>', FailureReason.NO_ARGUMENTS),
        ('<tool_call>{"name": "get", "arguments": []}</tool_call>', FailureReason.NO_ARGUMENTS),
        ('<tool_call>{"name": "  ", "arguments": {}}</tool_call>', FailureReason.NO_NAME),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', FailureReason.NO_NAME),
        (f"<tool_call>{GET}</tool_call><tool_call>oops</tool_call>", FailureReason.BAD_JSON),
    ],
)
def test_a_broken_message_has_one_failure_and_no_call(text, failure):
    reply = parse_assistant(text)
    assert (reply.failure, reply.calls) == (failure, ())


def test_a_call_without_a_name_is_one_structured_error():
    """Public bug 7: a missing name key vanished silently."""
    reply = parse_assistant('<tool_call>{"arguments": {}}</tool_call>')
    assert (reply.failure, reply.detail) == (FailureReason.NO_NAME, "the call has no name")


def test_a_call_drafted_in_thinking_is_ignored():
    """Public bug 6: a draft inside <think> was executed, and then once more outside."""
    text = f"<think>maybe <tool_call>{PUT}</tool_call></think><tool_call>{GET}</tool_call>"
    assert parse_assistant(text, thought_calls="ignore").calls == (get,)
    assert parse_assistant(text, thought_calls="execute").calls == (put, get)


def test_mentioning_the_tag_in_thinking_harms_nobody():
    assert parse_assistant("<think>I will use <tool_call></think>ok").failure is None


def test_tags_inside_arguments_are_text():
    call = ToolCall(name="put", arguments={"q": "</tool_call> <think> </think> <tool_call>"})
    assert parse_assistant(render_calls([call])).calls == (call,)
    thought = parse_assistant(f"a <tool_call> b</think>{render_calls([call, get])}")
    assert (thought.thinking, thought.calls) == ("a <tool_call> b", (call, get))


def test_characters_no_tokenizer_takes_are_replaced():
    reply = parse_assistant(
        'a\x00b\ud800 <tool_call>{"name": "put", "arguments": {"s": "\\ud800"}}</tool_call>'
    )
    assert reply.content == "a\ufffdb\ufffd"
    assert reply.calls[0].arguments == {"s": "\ufffd"}


def test_calls_survive_rendering():
    calls = (get, ToolCall(name="put", arguments={"t": "é <b>", "n": [1, 2.5, None, True]}))
    assert parse_assistant(render_calls(calls)).calls == calls
