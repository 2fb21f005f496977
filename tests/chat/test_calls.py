"""The tool-call grammar: the published table, and the bugs others shipped."""

import json

import pytest
from cases_kit import authors_calls, load, same, spell

from envace.chat.calls import parse_assistant, render_calls
from envace.types import FailureReason, ToolCall

CASES = load("calls")
GET = '{"name": "get", "arguments": {"id": "#a"}}'
PUT = '{"name": "put", "arguments": {}}'
get, put = ToolCall(name="get", arguments={"id": "#a"}), ToolCall(name="put", arguments={})


def found(reply):
    """A reply in the words of the table."""
    if reply.failure is not None:
        assert reply.calls == () and reply.detail
        return {"failure": str(reply.failure)}
    if not reply.calls:
        return {"reply": reply.content}
    calls = {"calls": [[c.name, c.arguments] for c in reply.calls]}
    return {**calls, "content": reply.content} if reply.content else calls


def spelled(expected):
    return {**expected, "content": spell(expected["content"])} if "content" in expected else expected


@pytest.mark.parametrize("case", CASES, ids=[c["case"] for c in CASES])
@pytest.mark.parametrize("thought_calls", ["ignore", "execute"])
def test_the_published_table(case, thought_calls):
    reply = parse_assistant(spell(case["written"]), thought_calls=thought_calls)
    assert same(found(reply), spelled(case.get(thought_calls, case["ignore"])))


@pytest.mark.parametrize("case", [c for c in CASES if c["authors"]], ids=lambda c: c["case"])
def test_the_column_of_the_published_code_follows_from_its_grammar(case):
    assert same(authors_calls(spell(case["written"])), case["authors"])


def test_no_case_stands_twice():
    assert len({c["case"] for c in CASES}) == len({json.dumps(c["written"]) for c in CASES}) == len(CASES)


def test_every_reason_a_message_can_fail_for_is_in_the_table():
    shown = {case["ignore"].get("failure") for case in CASES} - {None}
    assert shown == {"empty_output", "no_call_found", "bad_json", "no_arguments", "no_name"}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("oops", "the call is not JSON: Expecting value"),
        ('{"name": "get", "name": "put"}', "the call is not JSON: an object repeats a key"),
        ('{"name": "get", "arguments": {"n": NaN}}', "the call is not JSON: NaN is not JSON"),
        (f"{GET} and more", "the call is not JSON: text after the JSON value"),
        ("[" * 5000 + "]" * 5000, "the call is not JSON: nested too deep"),
        ("[]", "the list of calls is empty"),
        ('"get"', "a call must be an object with name and arguments"),
        ('{"name": "get", "arguments": "{}"}', "arguments must be an object"),
    ],
)
def test_a_failure_says_in_one_sentence_what_was_wrong(body, detail):
    assert parse_assistant(f"<tool_call>{body}</tool_call>").detail == detail


@pytest.mark.parametrize("depth", [65, 300, 600, 900, 990, 1100, 50_000])
def test_nesting_is_refused_at_a_stated_depth_however_much_stack_is_left(depth):
    body = '{"name": "put", "arguments": {"q": ' + "[" * (depth - 2) + "]" * (depth - 2) + "}}"
    assert parse_assistant(f"<tool_call>{body}</tool_call>").failure is FailureReason.BAD_JSON


def test_bug_6_a_call_drafted_in_thinking_is_not_executed():
    text = f"<think>maybe <tool_call>{PUT}</tool_call></think><tool_call>{GET}</tool_call>"
    assert parse_assistant(text).calls == (get,)
    assert parse_assistant(text, thought_calls="execute").calls == (put, get)


def test_bug_6_a_call_drafted_and_then_made_is_executed_once():
    block = f"<tool_call>{PUT}</tool_call>"
    assert parse_assistant(f"<think>{block}</think>{block}").calls == (put,)
    assert parse_assistant(f"{block}</think>{block}").calls == (put,)
    assert parse_assistant(f"<think>a</think>{block}</think>{block}").calls == (put,)


def test_bug_6_an_executed_draft_is_not_kept_as_a_thought_to_be_executed_again():
    reply = parse_assistant(f"<think>so <tool_call>{PUT}</tool_call> then</think>ok", thought_calls="execute")
    assert (reply.thinking, reply.content, reply.calls) == ("so\nthen", "ok", (put,))


def test_bug_7_a_call_without_a_name_is_one_structured_error_and_no_log(caplog):
    reply = parse_assistant('<tool_call>{"arguments": {}}</tool_call>')
    assert (reply.failure, reply.detail) == (FailureReason.NO_NAME, "the call has no name")
    assert not caplog.records


@pytest.mark.parametrize("broken", ["<tool_call>oops</tool_call>", f"<tool_call>{GET}", f"{GET}</tool_call>"])
def test_bug_30_a_broken_call_is_never_taken_for_a_reply_without_calls(broken):
    assert parse_assistant(f"I will not call anything. {broken}").failure is not None


def test_a_failed_message_keeps_what_was_written():
    reply = parse_assistant("<think>a</think>b <tool_call>oops</tool_call>")
    assert (reply.thinking, reply.content) == ("a", "b <tool_call>oops</tool_call>")


def test_tags_inside_arguments_are_text():
    call = ToolCall(name="put", arguments={"q": "</tool_call> <think> </think> <tool_call>"})
    assert parse_assistant(render_calls([call])).calls == (call,)
    thought = parse_assistant(f"a <tool_call> b</think>{render_calls([call, get])}")
    assert (thought.thinking, thought.calls) == ("a <tool_call> b", (call, get))


def test_calls_survive_rendering():
    calls = (get, ToolCall(name="put", arguments={"t": "é <b>", "n": [1, 2.5, None, True]}))
    assert parse_assistant(render_calls(calls)).calls == calls
