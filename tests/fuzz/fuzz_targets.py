"""What is fuzzed: bytes -> a text -> a parser, and what must hold whatever the text is.

Flows in: any bytes. Flows out: nothing, or an AssertionError that names the broken promise. Invariant: the
same bytes always give the same outcome; nothing here needs the fuzzer, so that tests replay what it found.

The first byte chooses how thoughts are read; the rest is UTF-8, each invalid byte a lone surrogate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from envace.chat.calls import ParsedReply, parse_assistant, published_reply, render_calls
from envace.chat.contract import parse_result, published_result, render_result
from envace.chat.text import MAX_DEPTH, dumps, strict_loads
from envace.types import FailureReason

MODES = ("ignore", "execute")
BROKEN = re.compile("[\0\ud800-\udfff]")
CALL_REASONS = {
    FailureReason.EMPTY_OUTPUT,
    FailureReason.NO_CALL_FOUND,
    FailureReason.BAD_JSON,
    FailureReason.NO_ARGUMENTS,
    FailureReason.NO_NAME,
}
RESULT_REASONS = {
    FailureReason.EMPTY_OUTPUT,
    FailureReason.NO_RESULT_TAG,
    FailureReason.RESULT_TAG_MALFORMED,
    FailureReason.RESULT_BAD_JSON,
    FailureReason.RESULT_BAD_TYPE,
}


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str, mode: str = "ignore") -> bytes:
    """The bytes that make a target read this text; lone surrogates come back as three others."""
    return bytes([MODES.index(mode)]) + text.encode("utf-8", "surrogatepass")


def calls(data: bytes) -> None:
    """The tool-call parser."""
    mode, text = MODES[data[0] % 2 if data else 0], text_of(data[1:])
    reply = parse_assistant(text, thought_calls=mode)
    assert not BROKEN.search(reply.thinking + reply.content), "a character a tokenizer chokes on is left"
    if reply.failure is not None:
        assert reply.failure in CALL_REASONS and reply.detail, "a failure without its reason"
        assert not reply.calls, "a broken message yields calls"
        return
    assert reply.calls or reply.content, "neither calls nor a text nor a failure"
    for call in reply.calls:
        assert call.name == call.name.strip() != "", "a call without a name"
        check_value(call.arguments)
    if mode == "execute":
        assert "<tool_call>" not in reply.thinking, "an executed call is left in the thinking"
    elif "</think>" not in text:
        assert not parse_assistant(f"<think>{text}").calls, "an open thought makes calls"
    check_again(reply, mode)


def check_again(reply: ParsedReply, mode: str) -> None:
    """What was read is written as a chat template does, and read again."""
    again = parse_assistant(written(reply), thought_calls=mode)
    assert again.failure is None, f"written again it is broken: {again.detail}"
    assert same(again.calls, reply.calls), "written again it makes other calls"
    assert again.content == reply.content, "written again it shows another text"
    alone = parse_assistant(render_calls(reply.calls), thought_calls=mode)
    assert same(alone.calls, reply.calls) and not alone.content, "calls alone are read differently"


def contract(data: bytes) -> None:
    """The rehearsal contract. The first byte is read by nobody, so that one corpus serves both targets."""
    text = text_of(data[1:])
    parsed = parse_result(text)
    if parsed.failure is not None:
        assert parsed.failure in RESULT_REASONS and parsed.detail, "a failure without its reason"
        assert parsed.value is None and not parsed.error, "a broken response yields a value"
        return
    value = parsed.value
    assert isinstance(value, list) or (isinstance(value, dict) and value), "neither a list nor a full object"
    assert parsed.error == (isinstance(value, dict) and "error" in value), (
        "a refusal is told by its key alone"
    )
    check_value(value)
    again = parse_result(render_result(value))
    assert again.failure is None and exact(again.value) == exact(value), "written again it is another value"
    if "</think>" not in text:
        assert parse_result(f"<think>{text}").failure, "an open thought answers a call"


def published(data: bytes) -> None:
    """The published code's grammars, which promise less: a text is read, and what it yields harms nobody
    later."""
    mode, text = MODES[data[0] % 2 if data else 0], text_of(data[1:])
    reply, parsed = published_reply(text, thought_calls=mode), published_result(text)
    assert not BROKEN.search(reply.thinking + reply.content), "a character a tokenizer chokes on is left"
    assert reply.failure is None or (reply.failure in CALL_REASONS and reply.detail and not reply.calls), (
        "two outcomes"
    )
    for call in reply.calls:
        assert call.name.strip(), "a call without a name"
        check_value([call.name, call.arguments])
    assert (parsed.failure is None) == (parsed.value is not None), "a value and a failure, or neither"
    assert parsed.failure is None or (parsed.failure in RESULT_REASONS and parsed.detail), (
        "a failure without its reason"
    )
    check_value(parsed.value)


def check_value(value: Any) -> None:
    """Strict JSON of bounded depth, free of characters a tokenizer chokes on, that forges no tag in a
    prompt."""
    plain = json.dumps(value, allow_nan=False, ensure_ascii=False)
    assert not BROKEN.search(plain), "a value holds a character a tokenizer chokes on"
    shown = dumps(value)
    assert "<" not in shown, "a value can forge a tag"
    assert exact(strict_loads(shown)) == exact(value), "a value changes when it is shown"
    assert depth(value) <= MAX_DEPTH, "a value nests too deep"


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def exact(value: Any) -> str:
    """Tells 1 from 1.0 and True, which are equal in Python."""
    return json.dumps(value, sort_keys=True)


def same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return exact([[c.name, c.arguments] for c in some]) == exact([[c.name, c.arguments] for c in others])


def written(reply: ParsedReply) -> str:
    thinking = f"<think>\n{reply.thinking}\n</think>\n\n" if reply.thinking else ""
    return thinking + "\n".join(filter(None, [reply.content, render_calls(reply.calls)]))


TARGETS = {"calls": calls, "contract": contract, "published": published}
