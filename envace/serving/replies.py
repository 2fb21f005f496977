"""What a model wrote -> the body of an OpenAI reply, or the events of a stream.

Invariant: the text is read by the same parser as in training (`envace.chat.calls`): a well-formed call
becomes an entry of tool_calls, with ids unique to the reply; a malformed one stays in the content as it was
written, as with vLLM's hermes parser, and is no error of the server.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
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
    """The body of a chat reply."""
    message = chat_message(written.text, tools=tools, one_call=one_call)
    finish = "tool_calls" if message.get("tool_calls") else written.finish
    return _body("chat.completion", model, [{"message": message, "finish_reason": finish}], [written])


def completion(written: Sequence[WrittenText], model: str) -> dict[str, JSON]:
    """The body of a reply with a text for each prompt."""
    choices = [{"text": one.text, "finish_reason": one.finish} for one in written]
    return _body("text_completion", model, choices, written)


def _body(
    kind: str, model: str, choices: list[dict[str, JSON]], written: Sequence[WrittenText]
) -> dict[str, JSON]:
    read, wrote = sum(one.prompt_tokens for one in written), sum(one.tokens for one in written)
    return {
        "id": f"{'chatcmpl' if kind == 'chat.completion' else 'cmpl'}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": i, **choice, "logprobs": None} for i, choice in enumerate(choices)],
        "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
    }


def stream(whole: dict[str, JSON], with_usage: bool) -> Iterator[bytes]:
    """A finished reply as server-sent events: the whole answer in few pieces, which is all that the protocol
    asks for."""
    head = {k: whole[k] for k in ("id", "created", "model", "object")}
    if head["object"] == "chat.completion":
        head["object"] = "chat.completion.chunk"
    for choice in whole["choices"]:
        if message := choice.get("message"):
            said = [{k: message[k]} for k in ("reasoning_content", "content") if message.get(k)]
            calls = enumerate(message.get("tool_calls") or ())
            said += [{"tool_calls": [{"index": i, **call}]} for i, call in calls]
            pieces = [{"delta": piece} for piece in ({"role": "assistant", "content": ""}, *said)]
            last: dict[str, JSON] = {"delta": {}}
        else:
            pieces, last = [{"text": choice["text"]}], {"text": ""}
        pieces = [{"finish_reason": None, **piece} for piece in pieces]
        for piece in (*pieces, {"finish_reason": choice["finish_reason"], **last}):
            yield _event(head | {"choices": [{"index": choice["index"], **piece}]})
    if with_usage:
        yield _event(head | {"choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, JSON]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def error(message: str, status: int, kind: str) -> dict[str, JSON]:
    """As vLLM words it, which is what clients take apart."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
