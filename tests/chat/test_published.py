"""`grammar: published`: the column "published code" of both tables, and what is read otherwise on purpose."""

import json
import time

import pytest
from cases_kit import authors_calls, authors_result, load, same, spell
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chat_fuzz import anything, soup

from envace.chat.calls import parse_assistant, published_reply
from envace.chat.contract import GRAMMARS, parse_result, published_result
from envace.chat.text import sanitise
from envace.chat.validate import validate_call
from envace.types import FailureReason, ToolCall

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
# Where a reader behind the parser would break, or nothing is stated.
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
    """A cell of the column in our reasons."""
    return {"failure": CODES[expected["code"]]} if "code" in expected else expected


def calls_found(text, thought_calls="execute"):
    reply = published_reply(text, thought_calls=thought_calls)
    if reply.failure is not None:
        assert reply.calls == () and reply.detail
        return {"failure": str(reply.failure)}
    return {"calls": [[c.name, c.arguments] for c in reply.calls]} if reply.calls else {"reply": True}


def result_found(text):
    parsed = published_result(text)
    if parsed.failure is not None:
        assert (parsed.value, parsed.error) == (None, False) and parsed.detail
        return {"failure": str(parsed.failure)}
    return {"value": parsed.value}


@pytest.mark.parametrize("case", load("calls"), ids=lambda c: c["case"])
def test_calls_are_what_the_published_code_finds(case):
    other = CALLS_READ_OTHERWISE.get(case["case"])
    if other is None:
        other = in_words(case["authors"])
    elif case["authors"] is not None:
        assert not same(other, in_words(case["authors"]))  # else it is no exception
    assert same(calls_found(spell(case["written"])), other)


@pytest.mark.parametrize("case", load("results"), ids=lambda c: c["case"])
def test_responses_are_what_the_published_code_finds(case):
    other = RESULTS_READ_OTHERWISE.get(case["case"])
    assert same(result_found(spell(case["written"])), other or in_words(case["authors"]))


def test_every_exception_is_a_case():
    assert set(CALLS_READ_OTHERWISE) <= {c["case"] for c in load("calls")}
    assert set(RESULTS_READ_OTHERWISE) <= {c["case"] for c in load("results")}


plain = soup.filter(lambda text: sanitise(text) == text)


@given(plain)
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_as_the_restated_grammar_reads_it(text):
    assert same(calls_found(text), in_words(authors_calls(text)))
    assert same(result_found(text), in_words(authors_result(text)))


@given(anything, st.sampled_from(["ignore", "execute"]))
@settings(max_examples=200, deadline=None)
def test_no_text_makes_it_raise_or_yields_what_is_no_json(text, thought_calls):
    reply, parsed = published_reply(text, thought_calls=thought_calls), published_result(text)
    json.dumps([[c.arguments for c in reply.calls], parsed.value], allow_nan=False).encode()
    sanitise(reply.thinking + reply.content).encode()


CALL = '\n<tool_call>\n{"name": "get", "arguments": {"id": 1}}\n</tool_call>'


def test_what_stands_before_the_first_block_is_kept_and_what_follows_it_dropped():
    reply = published_reply(f"<think>a</think>b{CALL}\nc", thought_calls="execute")
    assert (reply.thinking, reply.content, len(reply.calls)) == ("a", "b", 1)
    reply = published_reply(f"<think>maybe{CALL} so</think>ok", thought_calls="execute")
    assert (reply.thinking, reply.content, len(reply.calls)) == ("maybe", "", 1)


def test_thoughts_are_left_out_where_the_method_says_so():
    text = f"<think>maybe{CALL}</think>b{CALL}"
    assert len(published_reply(text, thought_calls="execute").calls) == 2
    reply = published_reply(text, thought_calls="ignore")
    assert (len(reply.calls), reply.content) == (1, "b")


def test_an_empty_message_is_a_reply_without_a_failure():
    assert published_reply("<think>hm</think>").failure is None
    assert parse_assistant("<think>hm</think>").failure is FailureReason.EMPTY_OUTPUT


def test_both_grammars_have_both_readers():
    assert GRAMMARS["strict"] == (parse_assistant, parse_result)
    assert GRAMMARS["published"] == (published_reply, published_result)


def test_arguments_without_names_break_every_schema():
    tools = [{"type": "function", "function": {"name": "get", "parameters": {"properties": {}}}}]
    for arguments in ("text", [1], 3, True):
        call = ToolCall(name="get", arguments=arguments)
        assert validate_call(call, tools)[0] is FailureReason.NO_ARGUMENTS and call.named == {}


@pytest.mark.parametrize(
    "piece", ["\n<tool_call>\n", "<think>", "\n<execution_result>\n", "\n<tool_call>\n{}\n</tool_call>"]
)
def test_reading_takes_time_in_proportion_to_length(piece):
    def seconds(n):
        began = time.process_time()
        published_reply(piece * n, thought_calls="execute"), published_result(piece * n)
        return time.process_time() - began

    seconds(1000)
    small, large = min(seconds(10_000) for _ in range(3)), min(seconds(80_000) for _ in range(3))
    assert large < 30 * max(small, 2e-3)  # eight times is linear, 64 times quadratic
