"""Both grammars of calls and responses: the published tables, and the bugs others shipped."""

import pytest
from cases_kit import authors_calls, authors_result, load, same, spell
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chat_fuzz import anything, json_safe, soup

from envace.chat.calls import parse_assistant, published_reply, render_calls
from envace.chat.contract import GRAMMARS, parse_result, published_result, render_result
from envace.chat.text import sanitise
from envace.chat.validate import validate_call
from envace.types import FailureReason, ToolCall

CALLS, RESULTS = load("calls"), load("results")
GET = '{"name": "get", "arguments": {"id": "#a"}}'
PUT = '{"name": "put", "arguments": {}}'
get, put = ToolCall(name="get", arguments={"id": "#a"}), ToolCall(name="put", arguments={})
CODES = {
    "NO_TOOL_CALL_FOUND": "no_call_found",
    "JSON_DECODE_ERROR": "bad_json",
    "NO_ARGUMENTS": "no_arguments",
    "INVALID_TOOL_NAME": "no_name",
    "EMPTY_SIMULATOR_OUTPUT": "empty_output",
    "NO_EXECUTION_RESULT_TAG_FOUND": "no_result_tag",
    "EXECUTION_RESULT_TAG_MALFORMED": "result_tag_malformed",
    "SIMULATOR_JSON_DECODE_ERROR": "result_bad_json",
    "INVALID_EXECUTION_RESULT_TYPE": "result_bad_type",
}
# Where a reader behind the published parser would break, or nothing is stated.
CALLS_READ_OTHERWISE = {
    "NaN": {"calls": [["get", {"id": "NaN"}]]},
    "Infinity": {"calls": [["get", {"id": "-Infinity"}]]},
    "a number out of range": {"calls": [["get", {"id": "Infinity"}]]},
    "an escaped lone surrogate": {"calls": [["put", {"q": "\ufffd"}]]},
    "a NUL in the JSON": {"calls": [["put", {"q": "\ufffd"}]]},
    "two keys that become one": {"failure": "bad_json"},
    "65 levels": {"failure": "bad_json"},
    "very deep nesting": {"failure": "bad_json"},
}
RESULTS_READ_OTHERWISE = {
    "NaN": {"value": {"a": "NaN"}},
    "a lone surrogate": {"value": {"a": "\ufffd"}},
    "a NUL itself in the JSON": {"value": {"a": "\ufffd"}},
    "a NUL written as an escape": {"value": {"a": "\ufffd"}},
    "very deep nesting": {"failure": "result_bad_json"},
}


def in_words(expected):
    """A cell of the published code's column in our reasons."""
    return {"failure": CODES[expected["code"]]} if "code" in expected else expected


def failed(parsed, *empty):
    """The failure in the words of the tables; a failed text has a detail and nothing else."""
    assert parsed.detail and not any(empty)
    return {"failure": str(parsed.failure)}


def reply_found(reply, content=True):
    if reply.failure is not None:
        return failed(reply, *reply.calls)
    if not reply.calls:
        return {"reply": reply.content if content else True}
    calls = {"calls": [[c.name, c.arguments] for c in reply.calls]}
    return {**calls, "content": reply.content} if reply.content and content else calls


def result_found(parsed, error=True):
    if parsed.failure is not None:
        return failed(parsed, parsed.value, parsed.error)
    return {"value": parsed.value, **({"error": True} if parsed.error and error else {})}


def published_calls(text):
    return reply_found(published_reply(text, thought_calls="execute"), content=False)


@pytest.mark.parametrize("case", CALLS, ids=[c["case"] for c in CALLS])
def test_the_table_of_calls(case):
    text = spell(case["written"])
    for thought_calls in ("ignore", "execute"):
        expected = case.get(thought_calls, case["ignore"])
        if "content" in expected:
            expected = {**expected, "content": spell(expected["content"])}
        assert same(reply_found(parse_assistant(text, thought_calls=thought_calls)), expected)
    if case["authors"]:  # the column follows from the grammar restated
        assert same(authors_calls(text), case["authors"])
    other = CALLS_READ_OTHERWISE.get(case["case"])
    assert same(published_calls(text), other or in_words(case["authors"]))
    assert not (other and case["authors"] and same(other, in_words(case["authors"])))  # else no exception


@pytest.mark.parametrize("case", RESULTS, ids=[c["case"] for c in RESULTS])
def test_the_table_of_responses(case):
    text = spell(case["written"])
    assert same(result_found(parse_result(text)), case["envace"])
    if case["authors"]:
        assert same(authors_result(text), case["authors"])
    other = RESULTS_READ_OTHERWISE.get(case["case"])
    assert same(result_found(published_result(text), error=False), other or in_words(case["authors"]))


def test_the_tables_show_every_reason_and_exception_and_no_case_twice():
    reasons = {c["ignore"].get("failure") for c in CALLS} | {c["envace"].get("failure") for c in RESULTS}
    assert reasons == {*CODES.values(), None}
    for cases, exceptions in ((CALLS, CALLS_READ_OTHERWISE), (RESULTS, RESULTS_READ_OTHERWISE)):
        assert len({c["case"] for c in cases}) == len({str(c["written"]) for c in cases}) == len(cases)
        assert set(exceptions) <= {c["case"] for c in cases}
    assert GRAMMARS["strict"] == (parse_assistant, parse_result)
    assert GRAMMARS["published"] == (published_reply, published_result)


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
        ('{"arguments": {}}', "the call has no name"),  # bug 7: one structured error
    ],
)
def test_a_failure_says_in_one_sentence_what_was_wrong(body, detail):
    assert parse_assistant(f"<tool_call>{body}</tool_call>").detail == detail


@pytest.mark.parametrize("depth", [65, 300, 600, 900, 990, 1100, 50_000])
def test_nesting_is_refused_at_a_stated_depth_however_much_stack_is_left(depth):
    body = '{"name": "put", "arguments": {"q": ' + "[" * (depth - 2) + "]" * (depth - 2) + "}}"
    assert parse_assistant(f"<tool_call>{body}</tool_call>").failure is FailureReason.BAD_JSON
    parsed = parse_result(f"<execution_result>{'[' * depth + ']' * depth}</execution_result>")
    assert (parsed.failure, parsed.detail) == (FailureReason.RESULT_BAD_JSON, "nested too deep")


PUT_BLOCK = f"<tool_call>{PUT}</tool_call>"


@pytest.mark.parametrize(
    ("text", "ignored", "executed"),
    [  # bug 6: a draft is not executed, and none twice
        (f"<think>maybe {PUT_BLOCK}</think><tool_call>{GET}</tool_call>", (get,), (put, get)),
        (f"<think>{PUT_BLOCK}</think>{PUT_BLOCK}", (put,), (put, put)),
        (f"{PUT_BLOCK}</think>{PUT_BLOCK}", (put,), (put, put)),
        (f"<think>a</think>{PUT_BLOCK}</think>{PUT_BLOCK}", (put,), (put, put)),
    ],
)
def test_a_call_drafted_in_thinking_is_a_call_only_where_the_method_says_so(text, ignored, executed):
    assert parse_assistant(text).calls == ignored
    assert parse_assistant(text, thought_calls="execute").calls == executed


def test_an_executed_draft_is_not_kept_as_a_thought_to_be_executed_again():
    reply = parse_assistant(f"<think>so {PUT_BLOCK} then</think>ok", thought_calls="execute")
    assert (reply.thinking, reply.content, reply.calls) == ("so\nthen", "ok", (put,))


@pytest.mark.parametrize("broken", ["<tool_call>oops</tool_call>", f"<tool_call>{GET}", f"{GET}</tool_call>"])
def test_a_broken_call_is_never_taken_for_a_reply_and_keeps_what_was_written(broken):
    reply = parse_assistant(f"<think>a</think>b {broken}")
    assert reply.failure is not None and (reply.thinking, reply.content) == ("a", f"b {broken}")


def test_tags_inside_json_strings_are_text():
    call = ToolCall(name="put", arguments={"q": "</tool_call> <think> </think> <tool_call>"})
    assert parse_assistant(render_calls([call])).calls == (call,)
    thought = parse_assistant(f"a <tool_call> b</think>{render_calls([call, get])}")
    assert (thought.thinking, thought.calls) == ("a <tool_call> b", (call, get))
    block = '<execution_result>{"a": "</execution_result>"}</execution_result>'
    assert parse_result(f"{block} {block}").detail == "2 opening and 3 closing tags"
    assert parse_result(f"{block} </execution_result>").detail == "1 opening and 2 closing tags"


def test_what_is_rendered_is_read_back():
    calls = (get, ToolCall(name="put", arguments={"t": "é <b>", "n": [1, 2.5, None, True]}))
    assert parse_assistant(render_calls(calls)).calls == calls
    value = {"html": "</execution_result><execution_result>", "n": [1, None], "é": "<think>"}
    assert render_result(value).count("<") == 2 and parse_result(render_result(value)).value == value


# --- the published grammar ------------------------------------------------------------------------


@given(soup.filter(lambda text: sanitise(text) == text))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_as_the_restated_grammar_reads_it(text):
    assert same(published_calls(text), in_words(authors_calls(text)))
    assert same(result_found(published_result(text), error=False), in_words(authors_result(text)))


@given(anything, st.sampled_from(["ignore", "execute"]))
@settings(max_examples=200, deadline=None)
def test_no_text_makes_it_raise_or_yields_what_is_no_json(text, thought_calls):
    reply, parsed = published_reply(text, thought_calls=thought_calls), published_result(text)
    json_safe([[c.arguments for c in reply.calls], parsed.value], reply.thinking + reply.content)


BLOCK = '\n<tool_call>\n{"name": "get", "arguments": {"id": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "thought_calls", "thinking", "content", "n"),
    [  # what stands before the first block is kept, what follows it dropped
        (f"<think>a</think>b{BLOCK}\nc", "execute", "a", "b", 1),
        (f"<think>maybe{BLOCK} so</think>ok", "execute", "maybe", "", 1),
        (f"<think>maybe{BLOCK}</think>b{BLOCK}", "execute", "maybe", "", 2),
        (f"<think>maybe</think>b{BLOCK}", "ignore", "maybe", "b", 1),
        ("<think>hm</think>", "ignore", "hm", "", 0),  # an empty message is a reply
    ],
)
def test_published_replies(text, thought_calls, thinking, content, n):
    reply = published_reply(text, thought_calls=thought_calls)
    assert (reply.thinking, reply.content, len(reply.calls), reply.failure) == (thinking, content, n, None)


def test_arguments_without_names_break_every_schema():
    tools = [{"type": "function", "function": {"name": "get", "parameters": {"properties": {}}}}]
    for arguments in ("text", [1], 3, True):
        call = ToolCall(name="get", arguments=arguments)
        assert validate_call(call, tools)[0] is FailureReason.NO_ARGUMENTS and call.named == {}
