"""The rehearsal output contract as a table."""

import pytest

from envace.chat.contract import parse_result, render_result
from envace.types import FailureReason


def block(body: str) -> str:
    return f"<execution_result>{body}</execution_result>"


@pytest.mark.parametrize(
    ("text", "value", "error"),
    [
        (block('{"a": 1}'), {"a": 1}, False),
        (block("[]"), [], False),
        (block('\n{"error": "not found"}\n'), {"error": "not found"}, True),
        ("<think>hm</think>" + block('{"a": 1}'), {"a": 1}, False),
        ("opened by the prompt</think>" + block('{"a": 1}'), {"a": 1}, False),
        ("Here: " + block('{"a": 1}') + " done", {"a": 1}, False),
    ],
)
def test_good_responses(text, value, error):
    parsed = parse_result(text)
    assert (parsed.value, parsed.error, parsed.failure) == (value, error, None)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", FailureReason.EMPTY_OUTPUT),
        ("<think>" + block('{"a": 1}'), FailureReason.EMPTY_OUTPUT),
        ('{"a": 1}', FailureReason.NO_RESULT_TAG),
        ('<execution_result>{"a": 1}', FailureReason.RESULT_TAG_MALFORMED),
        (block('{"a": 1}') + block('{"a": 2}'), FailureReason.RESULT_TAG_MALFORMED),
        ("</execution_result>{}<execution_result>", FailureReason.RESULT_TAG_MALFORMED),
        (block("a: 1"), FailureReason.RESULT_BAD_JSON),
        (block('```json\n{"a": 1}\n```'), FailureReason.RESULT_BAD_JSON),
        (block('{"a": NaN}'), FailureReason.RESULT_BAD_JSON),
        (block('{"a": 1, "a": 2}'), FailureReason.RESULT_BAD_JSON),
        (block('{"a": 1} {"b": 2}'), FailureReason.RESULT_BAD_JSON),
        (block("{}"), FailureReason.RESULT_BAD_TYPE),
        (block('"text"'), FailureReason.RESULT_BAD_TYPE),
        (block("null"), FailureReason.RESULT_BAD_TYPE),
    ],
)
def test_broken_responses_are_named(text, failure):
    parsed = parse_result(text)
    assert (parsed.failure, parsed.value, parsed.error) == (failure, None, False)


def test_a_response_survives_rendering_whatever_it_holds():
    value = {"html": "</execution_result><execution_result>", "n": [1, None], "é": "<think>"}
    text = render_result(value)
    assert text.count("<") == 2
    assert parse_result(text).value == value
