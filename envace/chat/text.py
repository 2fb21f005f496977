"""Text hygiene shared by everything that reads or writes model text.

Nothing here evaluates text; a value of at most `MAX_DEPTH` levels survives `strict_loads(dumps(value))`
unchanged; every function reads its text a bounded number of times, so that time grows with length alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator

from envace.types import JSON

# NUL, lone surrogates and the non-characters of every plane: fast tokenizers raise or disagree on them.
_PLANES = "".join(f"{chr(p * 0x10000 + 0xFFFE)}{chr(p * 0x10000 + 0xFFFF)}" for p in range(17))
_BROKEN = re.compile(f"[\x00\ud800-\udfff\ufdd0-\ufdef{_PLANES}]")
_TAG = re.compile(r"<think>|</think>|<(?P<block>tool_call|execution_result)>")
_CHAT_TAG = re.compile(r"<(/?(?:think|tool_call|tool_response|execution_result|tools)>)")
# Outside a string no JSON text holds `<` or a backslash. Stopping at either is what keeps reading linear: of
# all blocks opened in a text at most two can still be running at any character, one inside a string and one
# outside. (No possessive quantifiers: Python 3.11 before 3.11.5 gets nested ones wrong.)
_BODY = re.compile(r'(?:[^<"\\]+|"[^"\\]*(?:\\.[^"\\]*)*")*', re.S)

MAX_DEPTH = 64  # levels of nesting; what walks values later (schemas, records, prompts) recurses
BREAK = "\0"  # stands where something was cut out of sanitised text: left and right never join to a tag


# --- characters and thoughts ----------------------------------------------------------------------


def sanitise(text: str) -> str:
    """Text with NUL, lone surrogates and Unicode non-characters replaced by U+FFFD."""
    return text if text.isascii() and "\0" not in text else _BROKEN.sub("\ufffd", text)


def clip(text: str, limit: int = 160) -> str:
    """At most `limit` characters, the tail replaced by an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tidy(text: str) -> str:
    """Text without the white space and empty stretches around cuts; what stood apart is on lines of its
    own."""
    return "\n".join(stripped for part in text.split(BREAK) if (stripped := part.strip()))


def split_thinking(text: str) -> tuple[str, str]:
    """(thinking, visible), each stretch stripped and on a line of its own; see `split_parts`."""
    thinking, visible = split_parts(text)
    return thinking, tidy(visible)


def split_parts(text: str) -> tuple[str, str]:
    """(thinking, visible), with `BREAK` in the visible text wherever a thought was taken out.

    A tag quoted inside a well-formed call or result block is text, not a thought. An opening tag that is
    never closed makes everything after it thinking. A closing tag while no thought is open ends one that the
    prompt opened, or one that quoted a closing tag: everything before it is thinking. Thinking holds no
    opening tag: written once more, it would begin a thought that ends where this one does, and what stands
    before it would be visible.
    """
    if "think>" not in text:
        return "", text
    parts: list[str] = []  # in turn visible and thinking
    known = at = search = 0  # parts below `known` are all thinking; `at`: first character not handed out yet
    while tag := _TAG.search(text, search):
        if tag["block"]:
            search = _after_block(text, tag)
            continue
        parts.append(text[at : tag.start()])
        at = search = tag.end()
        if tag[0] == "<think>":
            close = text.find("</think>", at)
            parts.append(text[at : close if close >= 0 else None])
            at = search = close + len("</think>") if close >= 0 else len(text)
        else:
            parts.append("")
            known = len(parts)
    parts.append(text[at:])
    thinking = BREAK.join(parts[:known] + parts[known + 1 :: 2]).replace("<think>", BREAK)
    return tidy(thinking), BREAK.join(parts[known::2])


def _after_block(text: str, tag: re.Match[str]) -> int:
    """Index after a block of JSON, or after its opening tag when no such block stands there."""
    close, end = f"</{tag['block']}>", body_end(text, tag.end())
    if not text.startswith(close, end):
        return tag.end()
    body = text[tag.end() : end]
    try:
        if "think>" in body:  # only then does it matter whether the block is one
            strict_loads(body)
    except ValueError:
        return tag.end()
    return end + len(close)


def body_end(text: str, at: int) -> int:
    """Index at which a JSON text that starts at `at` must have ended: the first `<` or backslash outside its
    strings, the quote of a string that never ends, or the end of the text."""
    found = _BODY.match(text, at)
    return found.end() if found else at  # it always matches


def blocks_on_lines(text: str, tag: str) -> Iterator[str]:
    """The bodies of all blocks whose tags stand on lines of their own; the first closing tag ends each."""
    opened, closed, at = f"\n<{tag}>\n", f"\n</{tag}>", 0
    while (start := text.find(opened, at)) >= 0:
        start += len(opened)
        if (end := text.find(closed, start)) < 0:  # nothing closes a later one either
            return
        yield text[start:end]
        at = end + len(closed)


# --- JSON -----------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Foreign text between a prompt's own tags: sanitised, every `<` written as \\u003c, so that nothing in
    it opens or closes the tag it stands in."""
    return sanitise(text).replace("<", "\\u003c")


def foreign(value: JSON) -> JSON:
    """Text that somebody else wrote, as it may be a message of a chat, or JSON with such text: sanitised, and
    no tag in it reads as the chat's own (`<tool_response>` becomes `< tool_response>`)."""
    if isinstance(value, str):
        return _CHAT_TAG.sub(r"< \1", sanitise(value))
    if isinstance(value, dict):
        return {foreign(k): foreign(v) for k, v in value.items()}
    return [foreign(v) for v in value] if isinstance(value, list) else value


def dumps(value: JSON, *, allow_nan: bool = False) -> str:
    """JSON on one line for a prompt or a tool message, `escaped`.

    The value is unchanged for whoever parses it. Raises ValueError on NaN or infinity unless allowed.
    """
    return escaped(json.dumps(value, ensure_ascii=False, allow_nan=allow_nan))


def canonical(value: JSON) -> str:
    """JSON text that is equal exactly when two values are."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def sanitise_json(value: JSON, depth: int = MAX_DEPTH) -> JSON:
    """`sanitise` on every string and key inside a JSON value.

    Raises ValueError when it nests deeper than `depth` levels or two keys of an object become one.
    """
    if isinstance(value, str):
        return sanitise(value)
    if not isinstance(value, (dict, list)):
        return value
    if not depth:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [sanitise_json(v, depth - 1) for v in value]
    return unique_keys([(sanitise(k), sanitise_json(v, depth - 1)) for k, v in value.items()])


def unique_keys(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    """An object's pairs as a dict (`object_pairs_hook`). Raises ValueError where a key is given twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object repeats a key")
    return value


def _refuse_constant(name: str) -> JSON:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{clip(digits, 20)} is out of range")
    return value


STRICT = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_refuse_constant, parse_float=_finite)


def strict_loads(text: str) -> JSON:
    """The whole text as one strict JSON value, white space around it skipped.

    Raises ValueError: not JSON, NaN, infinity, a repeated key, nested too deep, or text after the value.
    """
    text = text.strip()
    try:
        value, end = STRICT.raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if end < len(text):
        raise ValueError("text after the JSON value")
    # Most calls are flat ASCII: then there is nothing to replace and no depth to measure.
    plain = text.isascii() and "\\u" not in text and text.count("[") + text.count("{") <= MAX_DEPTH
    return value if plain else sanitise_json(value)


def reply_json(text: str, loads: Callable[[str], JSON] = strict_loads) -> JSON:
    """The JSON value of a model's reply, thoughts before it and one code fence around it set aside.

    A tag inside a JSON string is text: the whole reply is tried first, then what follows each closed thought.
    Raises the ValueError of the last try.
    """
    while True:
        body = text.strip()
        if body.startswith("```") and body.endswith("```") and "\n" in body:
            body = body.partition("\n")[2].removesuffix("```")
        try:
            return loads(body)
        except ValueError:
            _, closed, text = text.partition("</think>")
            if not closed:
                raise


def loose_loads(text: str) -> JSON:
    """As Python reads JSON: the last of equal keys counts; NaN and infinities stand as their names. Raises
    ValueError."""

    def number(digits: str) -> float | str:
        value = float(digits)
        return value if math.isfinite(value) else ("-Infinity" if value < 0 else "Infinity")

    try:
        return sanitise_json(json.loads(text, parse_constant=str, parse_float=number))
    except RecursionError:
        raise ValueError("nested too deep") from None


def json_problem(error: ValueError) -> str:
    """What was wrong with a JSON text, in a few words."""
    return clip(getattr(error, "msg", None) or str(error), 80)
