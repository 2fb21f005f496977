"""Text hygiene shared by everything that reads or writes model text.

Flows in: text a model, a tool or a data set wrote. Flows out: the same text without characters a tokenizer
chokes on, strict JSON values, JSON text in which no tag can be forged, and thinking split from what is visible.
Invariant: nothing here evaluates text; a value survives `strict_loads(dumps(value))` unchanged.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from envace.types import JSON

# NUL, lone surrogates and the non-characters of every plane: fast tokenizers raise or disagree on them.
_PLANES = "".join(f"{chr(p * 0x10000 + 0xFFFE)}{chr(p * 0x10000 + 0xFFFF)}" for p in range(17))
_BROKEN = re.compile(f"[\x00\ud800-\udfff\ufdd0-\ufdef{_PLANES}]")
_TAG = re.compile(r"<think>|</think>|<(?P<block>tool_call|execution_result)>")


def sanitise(text: str) -> str:
    """Text with NUL, lone surrogates and Unicode non-characters replaced by U+FFFD."""
    return _BROKEN.sub("\ufffd", text)


def sanitise_json(value: JSON) -> JSON:
    """`sanitise` on every string and key inside a JSON value."""
    if isinstance(value, str):
        return sanitise(value)
    if isinstance(value, dict):
        return {sanitise(k): sanitise_json(v) for k, v in value.items()}
    return [sanitise_json(v) for v in value] if isinstance(value, list) else value


def dumps(value: JSON) -> str:
    """JSON text for prompts and tool messages: every `<` written as \\u003c, so no tag can be opened or closed.

    The value is unchanged for whoever parses it. Raises ValueError on NaN or infinity.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return sanitise(text).replace("<", "\\u003c")


def canonical(value: JSON) -> str:
    """JSON text that is equal exactly when two values are."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def split_thinking(text: str) -> tuple[str, str]:
    """(thinking, visible). A tag quoted inside a well-formed call or result block is text, not a thought.

    A closing tag without an opening one ends a thought that the prompt opened; an opening tag that is never
    closed makes everything after it thinking.
    """
    thoughts: list[str] = []
    visible: list[str] = []
    at, search = 0, 0  # `at`: first character not yet handed out; `search`: where to look for the next tag
    while tag := _TAG.search(text, search):
        if tag["block"]:
            search = _block_end(text, tag)
        elif tag[0] == "<think>":
            close = text.find("</think>", tag.end())
            visible.append(text[at : tag.start()])
            thoughts.append(text[tag.end() : close if close >= 0 else None])
            at = search = close + len("</think>") if close >= 0 else len(text)
        elif not thoughts:
            thoughts.append(text[: tag.start()])
            at = search = tag.end()
        else:
            search = tag.end()
    visible.append(text[at:])
    return "\n".join(t.strip() for t in thoughts if t.strip()), "".join(visible)


def _block_end(text: str, tag: re.Match[str]) -> int:
    """Index after a block of JSON, or after its opening tag when no such block stands there."""
    close = f"</{tag['block']}>"
    try:
        end = skip_space(text, read_json(text, tag.end())[1])
    except ValueError:
        return tag.end()
    return end + len(close) if text.startswith(close, end) else tag.end()


def clip(text: str, limit: int = 160) -> str:
    """At most `limit` characters, the tail replaced by an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object repeats a key")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{clip(digits, 20)} is out of range")
    return value


STRICT = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_refuse_constant, parse_float=_finite
)


def skip_space(text: str, at: int) -> int:
    """Index of the first character that is not white space, from `at` on."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def read_json(text: str, at: int = 0) -> tuple[JSON, int]:
    """One strict JSON value that starts at `at` (white space skipped) and the index after it.

    Raises ValueError: not JSON, NaN, infinity, a repeated key, or nested too deep.
    """
    try:
        value, end = STRICT.raw_decode(text, skip_space(text, at))
    except RecursionError:
        raise ValueError("nested too deep") from None
    return sanitise_json(value), end


def strict_loads(text: str) -> JSON:
    """The whole text as one strict JSON value. Raises ValueError."""
    value, end = read_json(text)
    if skip_space(text, end) < len(text):
        raise ValueError("text after the JSON value")
    return value
