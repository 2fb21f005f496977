"""Properties of the two parsers over texts nobody would write: made of tags, quotes, calls and noise."""

import json
import re
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envace.chat.calls import parse_assistant, published_reply, render_calls
from envace.chat.contract import OPEN, parse_result, published_result, render_result
from envace.chat.text import BREAK, body_end, split_parts
from envace.types import FailureReason, ToolCall

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<execution_result>", "</execution_result>"]
GET = '{"name": "get", "arguments": {"q": 1}}'
PIECES = [
    *TAGS,
    GET,
    '{"a": 1}',
    '"',
    '\\"',
    "\\",
    "\n",
    " ",
    "\0",
    "\ud800",
    "é",
    "tool_",
    "call>",
    *"<[]{},:",
]
soup = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)
anything = soup | st.text(st.characters(), max_size=60)
more = settings(max_examples=150, deadline=None)
modes = st.sampled_from(["ignore", "execute"])

CALL_REASONS = {"empty_output", "no_call_found", "bad_json", "no_arguments", "no_name"}
RESULT_REASONS = set(
    "empty_output no_result_tag result_tag_malformed result_bad_json result_bad_type".split()
)

plain = st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\0"), max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain
    | st.sampled_from(TAGS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=8,
)
names = plain.map(str.strip).filter(bool) | st.sampled_from(TAGS)
calls = st.builds(ToolCall, name=names, arguments=st.dictionaries(plain, values, max_size=3))


def json_safe(values, text):
    """What was read is JSON and text that any tokenizer takes."""
    json.dumps(values, allow_nan=False).encode()
    assert not re.search("[\0\ud800-\udfff]", text)


@given(anything, modes)
@more
def test_a_message_never_raises_and_yields_calls_a_text_or_one_reason(text, mode):
    reply = parse_assistant(text, thought_calls=mode)
    if reply.failure is None:
        assert reply.calls or reply.content
    else:
        assert reply.failure in CALL_REASONS and reply.detail and not reply.calls
    json_safe([c.arguments for c in reply.calls], reply.thinking + reply.content)


@given(anything)
@more
def test_a_response_never_raises_and_yields_a_value_or_one_reason(text):
    parsed = parse_result(text)
    if parsed.failure is None:
        assert isinstance(parsed.value, list) or (isinstance(parsed.value, dict) and parsed.value)
        assert parse_result(render_result(parsed.value)) == parsed
    else:
        assert parsed.failure in RESULT_REASONS and parsed.detail and parsed.value is None


def written(reply):
    """The text a chat template makes of a parsed message."""
    thinking = f"<think>\n{reply.thinking}\n</think>\n\n" if reply.thinking else ""
    return thinking + "\n".join(filter(None, [reply.content, render_calls(reply.calls)]))


@given(anything)
@example(f"a <tool_call>{GET[:-2]}" + ', "r": "</think>"}}</tool_call> b</think>ok')
@more
def test_reading_what_was_read_and_written_again_changes_nothing(text):
    first = parse_assistant(text)
    if first.failure is None:
        second = parse_assistant(written(first))
        assert (second.content, second.calls, second.failure) == (first.content, first.calls, None)


@given(anything)
@more
def test_no_call_is_executed_twice_when_thoughts_are_read(text):
    first = parse_assistant(text, thought_calls="execute")
    if first.failure is None:
        assert "<tool_call>" not in first.thinking
        assert parse_assistant(written(first), thought_calls="execute").calls == first.calls


STEPS = st.lists(st.sampled_from(["<think>", "</think>", "call", "word"]), max_size=12)


@given(STEPS)
@example(["<think>", "call", "</think>", "call", "</think>", "call"])
@more
def test_what_is_executed_was_written_outside_thoughts(steps):
    """The oracle walks the steps: a thought runs to the next closing tag, a stray one makes all before it
    thinking."""
    text, outside, thinking = "", [], False
    for n, step in enumerate(steps):
        text += f'<tool_call>{{"name": "c{n}", "arguments": {{}}}}</tool_call>' if step == "call" else step
        if step == "call" and not thinking:
            outside.append(f"c{n}")
        if step == "</think>" and not thinking:
            outside = []
        thinking = step == "<think>" or (thinking and step != "</think>")
    assert [c.name for c in parse_assistant(text).calls] == outside
    every = [f"c{n}" for n, step in enumerate(steps) if step == "call"]
    assert [c.name for c in parse_assistant(text, thought_calls="execute").calls] == every


@given(st.lists(calls, min_size=1, max_size=3), modes, st.booleans())
@more
def test_rendered_calls_come_back_whatever_they_hold(made, mode, thought):
    reply = parse_assistant("<think>hm</think>\n" * thought + render_calls(made), thought_calls=mode)
    assert (reply.calls, reply.content, reply.failure) == (tuple(made), "", None)


@given(st.lists(values, max_size=3) | st.dictionaries(plain, values, min_size=1, max_size=3))
@more
def test_a_rendered_response_comes_back_whatever_it_holds(value):
    assert parse_result(render_result(value)).value == value
    loose = f"<execution_result>{json.dumps(value)}</execution_result>"  # tags in its strings unescaped
    assert parse_result(loose).value == value


@given(soup)
@more
def test_nothing_joins_across_a_thought(text):
    """Every stretch of visible text stands in the text as it is, in order."""
    text, at = text.replace(BREAK, ""), 0
    for part in split_parts(text)[1].split(BREAK):
        at = text.index(part, at) + len(part)


# --- time, counted: no clock ----------------------------------------------------------------------


def slow_body_end(text, at):
    """The definition, one character at a time."""
    quote = -1
    while at < len(text):
        if quote >= 0 and text[at] == "\\" and at + 1 < len(text):
            at += 1
        elif text[at] == '"':
            quote = -1 if quote >= 0 else at
        elif quote < 0 and text[at] in "<\\":
            return at
        at += 1
    return at if quote < 0 else quote


@given(soup)
@more
def test_a_body_ends_where_the_definition_says(text):
    assert body_end(text, 0) == slow_body_end(text, 0)


@given(
    st.lists(st.sampled_from(["<tool_call>", '"', '\\"', "\\\\", "[", "{", "x", "</tool_call>"]), max_size=60)
)
@more
def test_all_bodies_together_are_read_at_most_twice(pieces):
    text = "".join(pieces)
    starts = [m.end() for m in re.finditer("<tool_call>", text)]
    assert sum(body_end(text, start) - start for start in starts) <= 2 * len(text)


def steps_of(parse, text):
    """How many functions, Python's and C's, a parse calls."""
    count = 0

    def seen(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        parse(text)
    finally:
        sys.setprofile(None)
    return count


OPENED = ["<tool_call>{", '<tool_call>"', '<tool_call>\\"', "<tool_call>[[", f"{OPEN}{{"]
LINES = ["\n<tool_call>\n", "\n<execution_result>\n", "\n<tool_call>\n{}\n</tool_call>"]
WHOLE = [f"<tool_call>{GET}</tool_call>", "<think>a</think>", "a</think>", f"{OPEN}[1]</execution_result>"]


@pytest.mark.parametrize("piece", [*TAGS, GET, *OPENED, *LINES, *WHOLE, " ", "\n", "x"])
@pytest.mark.parametrize(
    "parse", [parse_assistant, parse_result, published_reply, published_result], ids=lambda f: f.__name__
)
def test_twice_the_text_takes_at_most_twice_the_steps(parse, piece):
    few, many = steps_of(parse, piece * 200), steps_of(parse, piece * 400)
    assert many <= 2 * few + 20


def test_a_long_message_of_every_piece_is_read():
    """A megabyte; were any part quadratic, this would take minutes."""
    text = "".join(PIECES) * (1_000_000 // len("".join(PIECES)))
    assert parse_assistant(text).failure in set(FailureReason)
    assert parse_result(text).failure in set(FailureReason)
