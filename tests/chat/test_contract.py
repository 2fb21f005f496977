"""The rehearsal output contract: the published table."""

import json

import pytest
from cases_kit import authors_result, load, same, spell

from envace.chat.contract import parse_result, render_result
from envace.types import FailureReason

CASES = load("results")


def found(parsed):
    """A parsed response in the words of the table."""
    if parsed.failure is not None:
        assert (parsed.value, parsed.error) == (None, False) and parsed.detail
        return {"failure": str(parsed.failure)}
    return {"value": parsed.value, "error": True} if parsed.error else {"value": parsed.value}


@pytest.mark.parametrize("case", CASES, ids=[c["case"] for c in CASES])
def test_the_published_table(case):
    assert same(found(parse_result(spell(case["written"]))), case["envace"])


@pytest.mark.parametrize("case", [c for c in CASES if c["authors"]], ids=lambda c: c["case"])
def test_the_column_of_the_published_code_follows_from_its_grammar(case):
    assert same(authors_result(spell(case["written"])), case["authors"])


def test_no_case_stands_twice():
    assert len({c["case"] for c in CASES}) == len({json.dumps(c["written"]) for c in CASES}) == len(CASES)


def test_every_reason_a_response_can_fail_for_is_in_the_table():
    shown = {case["envace"].get("failure") for case in CASES} - {None}
    assert shown == {
        "empty_output",
        "no_result_tag",
        "result_tag_malformed",
        "result_bad_json",
        "result_bad_type",
    }


def test_tags_are_counted_outside_json_strings():
    block = '<execution_result>{"a": "</execution_result>"}</execution_result>'
    assert parse_result(f"{block} {block}").detail == "2 opening and 3 closing tags"
    assert parse_result(f"{block} </execution_result>").detail == "1 opening and 2 closing tags"


@pytest.mark.parametrize("depth", [65, 300, 600, 900, 990, 1100, 50_000])
def test_nesting_is_refused_at_a_stated_depth_however_much_stack_is_left(depth):
    parsed = parse_result(f"<execution_result>{'[' * depth + ']' * depth}</execution_result>")
    assert (parsed.failure, parsed.detail) == (FailureReason.RESULT_BAD_JSON, "nested too deep")


def test_a_response_survives_rendering_whatever_it_holds():
    value = {"html": "</execution_result><execution_result>", "n": [1, None], "é": "<think>"}
    text = render_result(value)
    assert text.count("<") == 2
    assert parse_result(text).value == value
