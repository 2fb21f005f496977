"""Requests to and replies from chat completions.

Flows in: a question; the bytes of a reply. Flows out: the bytes of a request; text, finish reason and tokens.
Invariant: a reply is a completion or a `CallFault` with a named reason; token counts are whole numbers the
server stated, or None.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from envace.data import jsontext
from envace.io import chat_reply
from envace.types import JSON

retry_after = partial(chat_reply.retry_after, longest_s=900.0)  # a batch has more patience than a judge


class CallFault(Exception):
    """One request without a usable reply. `again`: the same request may yet succeed."""

    def __init__(self, reason: str, *, again: bool = True, wait_s: float = 0.0):
        super().__init__(reason)
        self.reason, self.again, self.wait_s = reason, again, wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing to ask: the messages, and the schema its answer should follow."""

    messages: tuple[dict[str, str], ...]
    schema: dict[str, JSON]  # {"name": ..., "strict": True, "schema": {...}}
    effort: str  # none leaves the field out


@dataclass(frozen=True, slots=True)
class Shape:
    """How requests are put to this server; what it refuses is left out from then on."""

    structured: bool = True
    limit_field: str = "max_tokens"  # newer servers call it max_completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    text: str
    finish: str
    read: int | None  # tokens of the prompt
    written: int | None


def body(question: Question, shape: Shape, model: str, max_tokens: int, temperature: float | None) -> bytes:
    """The request as ASCII JSON."""
    data: dict[str, JSON] = {
        "model": model,
        "messages": list(question.messages),
        shape.limit_field: max_tokens,
    }
    if temperature is not None:
        data["temperature"] = temperature
    if question.effort != "none":
        data["reasoning_effort"] = question.effort
    if shape.structured:
        data["response_format"] = {"type": "json_schema", "json_schema": question.schema}
    return json.dumps(data).encode("ascii")


def lesser(shape: Shape, refusal: str) -> Shape | None:
    """What to try after the server refused a request: its own name for the limit, else without a schema."""
    if "max_completion_tokens" in refusal and shape.limit_field == "max_tokens":
        return replace(shape, limit_field="max_completion_tokens")
    return replace(shape, structured=False) if shape.structured else None


def completion(content: bytes) -> Completion:
    """The first choice of a reply. Raises CallFault."""
    try:
        data = json.loads(content)
        choice = data["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text, refusal = message.get("content"), message.get("refusal")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise CallFault("no_completion", again=False) from None
    if refusal or finish == "content_filter":
        raise CallFault("refused_by_model", again=False)
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Completion(
        text=text if isinstance(text, str) else "",
        finish=finish if isinstance(finish, str) else "",
        read=_count(usage.get("prompt_tokens")),
        written=_count(usage.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def error_code(content: bytes) -> str:
    """The server's own short name of an error, where it gives one; never its message, which may echo a key."""
    try:
        error = json.loads(content)["error"]
        names = [error.get("code"), error.get("type")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return next((n for n in names if isinstance(n, str) and re.fullmatch(r"[a-z_]{3,40}", n)), "")


def strict_json(text: str) -> JSON:
    """The JSON of a model's reply, its thinking and one code fence taken off. Raises ValueError."""
    text = text.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2].removesuffix("```")
    return jsontext.read(text)
