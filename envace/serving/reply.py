"""What a model wrote -> the body of an OpenAI reply.

Flows in: the decoded text of one generation and its token counts. Flows out: a chat completion, a completion, or
the pieces of a stream.
Invariant: the text is read by the same parser as in training (`envace.chat.calls`): a well-formed call becomes an
entry of tool_calls, with ids unique to the reply; a malformed one stays in the content as it was written, as with
vLLM's hermes parser, and is no error of the server.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from envace.chat.calls import parse_assistant
from envace.chat.text import dumps


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One generation."""

    text: str
    finish: str  # stop | length
    prompt_tokens: int
    tokens: int


def chat_message(text: str, *, tools: bool, one_call: bool = False) -> dict[str, Any]:
    """The assistant message of a text. Without tools on offer a call is text."""
    reply = parse_assistant(text)
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if not tools and reply.calls:
        message["content"] = text.rpartition("</think>")[2].strip() if reply.thinking else text.strip()
        return message
    if reply.calls:
        calls = reply.calls[:1] if one_call else reply.calls
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": dumps(call.arguments)},
            }
            for call in calls
        ]
    elif message["content"] is None:
        message["content"] = ""
    return message


def chat_completion(written: Written, model: str, *, tools: bool, one_call: bool = False) -> dict[str, Any]:
    message = chat_message(written.text, tools=tools, one_call=one_call)
    finish = "tool_calls" if message.get("tool_calls") else written.finish
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return _head("chatcmpl", "chat.completion", model) | {"choices": [choice], "usage": usage(written)}


def completion(written: Written, model: str) -> dict[str, Any]:
    choice = {"index": 0, "text": written.text, "finish_reason": written.finish, "logprobs": None}
    return _head("cmpl", "text_completion", model) | {"choices": [choice], "usage": usage(written)}


def usage(written: Written) -> dict[str, int]:
    return {
        "prompt_tokens": written.prompt_tokens,
        "completion_tokens": written.tokens,
        "total_tokens": written.prompt_tokens + written.tokens,
    }


def stream(whole: dict[str, Any], with_usage: bool) -> Iterator[bytes]:
    """A finished reply as server-sent events: the whole answer in few pieces, which is all the protocol asks for."""
    choice = whole["choices"][0]
    head = {k: whole[k] for k in ("id", "created", "model")} | {"object": whole["object"]}
    if "message" in choice:
        head["object"] = "chat.completion.chunk"
        deltas: Sequence[dict[str, Any]] = [{"delta": d} for d in _deltas(choice["message"])]
        last: dict[str, Any] = {"delta": {}}
    else:
        deltas, last = [{"text": choice["text"]}], {"text": ""}
    for delta in deltas:
        yield _event(head | {"choices": [{"index": 0, "finish_reason": None, **delta}]})
    yield _event(head | {"choices": [{"index": 0, "finish_reason": choice["finish_reason"], **last}]})
    if with_usage:
        yield _event(head | {"choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def error(message: str, status: int, kind: str) -> dict[str, Any]:
    """As vLLM words it, which is what clients take apart."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "content"):
        if message.get(name):
            yield {name: message[name]}
    for i, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": i, **call}]}


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}
