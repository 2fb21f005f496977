"""What a model wrote -> the body of an OpenAI reply.

Flows in: the decoded text of one generation and its token counts. Flows out: a chat completion, a completion,
or the pieces of a stream.
Invariant: the text is read by the same parser as in training (`envace.chat.calls`): a well-formed call
becomes an entry of tool_calls, with ids unique to the reply; a malformed one stays in the content as it was
written, as with vLLM's hermes parser, and is no error of the server.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from envace.chat.calls import parse_assistant
from envace.chat.text import dumps
from envace.types import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenText:
    """One generation."""

    text: str
    finish: str
    """`stop` or `length`."""
    prompt_tokens: int
    tokens: int


def chat_message(text: str, *, tools: bool, one_call: bool = False) -> dict[str, JSON]:
    """The assistant message of a text. Without tools on offer a call is text."""
    reply = parse_assistant(text)
    message: dict[str, JSON] = {"role": "assistant", "content": reply.content or None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls and not tools:
        message["content"] = text.rpartition("</think>")[2].strip() if reply.thinking else text.strip()
    elif reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": dumps(call.arguments)},
            }
            for call in (reply.calls[:1] if one_call else reply.calls)
        ]
    elif message["content"] is None:
        message["content"] = ""
    return message


def chat_completion(
    written: WrittenText, model: str, *, tools: bool, one_call: bool = False
) -> dict[str, JSON]:
    message = chat_message(written.text, tools=tools, one_call=one_call)
    finish = "tool_calls" if message.get("tool_calls") else written.finish
    return _whole("chatcmpl", "chat.completion", model, {"message": message}, finish, written)


def completion(written: WrittenText, model: str) -> dict[str, JSON]:
    return _whole("cmpl", "text_completion", model, {"text": written.text}, written.finish, written)


def _whole(
    prefix: str, kind: str, model: str, said: dict[str, JSON], finish: str, written: WrittenText
) -> dict[str, JSON]:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, **said, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": written.prompt_tokens,
            "completion_tokens": written.tokens,
            "total_tokens": written.prompt_tokens + written.tokens,
        },
    }


def stream(whole: dict[str, JSON], with_usage: bool) -> Iterator[bytes]:
    """A finished reply as server-sent events: the whole answer in few pieces, which is all the protocol asks
    for.
    """
    choice = whole["choices"][0]
    head = {k: whole[k] for k in ("id", "created", "model", "object")}
    if "message" in choice:
        head["object"] = "chat.completion.chunk"
        pieces = [{"delta": delta} for delta in _deltas(choice["message"])]
        last: dict[str, JSON] = {"delta": {}}
    else:
        pieces, last = [{"text": choice["text"]}], {"text": ""}
    for piece in pieces:
        yield _event(head | {"choices": [{"index": 0, "finish_reason": None, **piece}]})
    yield _event(head | {"choices": [{"index": 0, "finish_reason": choice["finish_reason"], **last}]})
    if with_usage:
        yield _event(head | {"choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def _deltas(message: dict[str, JSON]) -> Iterator[dict[str, JSON]]:
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "content"):
        if message.get(name):
            yield {name: message[name]}
    for i, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": i, **call}]}


def _event(data: dict[str, JSON]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def error(message: str, status: int, kind: str) -> dict[str, JSON]:
    """As vLLM words it, which is what clients take apart."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
