"""The body of an OpenAI request -> what is to be generated.

Flows in: decoded JSON from whoever asks. Flows out: `ChatRequest` or `TextRequest`.
Invariant: nothing that was asked for is left out in silence: a field that would change the answer and is not
served is refused by name (`RequestRefused`, status 400). Fields without effect on the answer are passed over,
as vLLM does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from envace.types import JSON, Message, Sampling, ToolCall, replace

NEUTRAL: dict[str, tuple[JSON, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}
"""Values under which a field that is not served changes nothing."""


class RequestRefused(Exception):
    """A request that cannot be served, with the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError"):
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """What both kinds of request say."""

    model: str
    sampling: Sampling
    """Its max_tokens counts only where `max_tokens` is set."""
    max_tokens: int | None
    """None: as many as the context holds."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    """At the end of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    settings: RequestSettings
    messages: tuple[Message, ...]
    tools: tuple[dict[str, JSON], ...] = ()
    thinking: bool | None = None
    """None: as the server was started."""
    one_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    settings: RequestSettings
    prompt: str | tuple[int, ...]


def read_chat(body: JSON, defaults: Sampling) -> ChatRequest:
    """Raises RequestRefused."""
    settings = _settings(body, defaults)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages must be a list with at least one message")
    options = body.get("chat_template_kwargs") or {}
    if unknown := set(options) - {"enable_thinking"}:
        raise RequestRefused(f"chat_template_kwargs {sorted(unknown)} are not served; enable_thinking is")
    tools = body.get("tools") if body.get("tool_choice") != "none" else None
    return ChatRequest(
        settings=settings,
        messages=_messages(messages),
        tools=tuple(_tool(t) for t in tools or ()),
        thinking=options.get("enable_thinking"),
        one_call=body.get("parallel_tool_calls") is False,
    )


def read_text(body: JSON, defaults: Sampling) -> TextRequest:
    """Raises RequestRefused."""
    settings, prompt = _settings(body, defaults), body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(i, int) and i >= 0 for i in prompt):
        return TextRequest(settings=settings, prompt=tuple(prompt))
    if not isinstance(prompt, str) or not prompt:
        raise RequestRefused("prompt must be one text or one list of token ids")
    return TextRequest(settings=settings, prompt=prompt)


def _settings(body: JSON, defaults: Sampling) -> RequestSettings:
    if not isinstance(body, Mapping):
        raise RequestRefused("the body must be a JSON object")
    for name, harmless in NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise RequestRefused(f"{name}={json.dumps(value)[:80]} is not served here")
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    sampling = replace(
        defaults,
        temperature=_number("temperature", body.get("temperature"), defaults.temperature, 0.0, 100.0),
        top_p=_number("top_p", body.get("top_p"), defaults.top_p, 1e-6, 1.0),
        top_k=int(_number("top_k", body.get("top_k"), defaults.top_k, -1, 1e9)) or -1,
        seed=None if body.get("seed") is None else int(_number("seed", body["seed"], 0, -(2**63), 2**64)),
    )
    stop = body.get("stop") or ()
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, (list, tuple)) or not all(isinstance(s, str) for s in stop):
        raise RequestRefused("stop must be a text or a list of texts")
    return RequestSettings(
        model=str(body.get("model") or ""),
        sampling=sampling,
        max_tokens=None if limit is None else int(_number("max_tokens", limit, 1, 1, 1e9)),
        stop=tuple(s for s in stop if s),
        stream=bool(body.get("stream")),
        usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _number(name: str, value: JSON, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise RequestRefused(
            f"{name} must be a number from {low:g} to {high:g}, not {json.dumps(value)[:40]}"
        )
    return value


def _tool(tool: JSON) -> dict[str, JSON]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestRefused(
            'a tool must be {"type": "function", "function": {"name": ..., "parameters": ...}}'
        )
    return tool


def _messages(messages: list[JSON]) -> tuple[Message, ...]:
    read: list[Message] = []
    names: dict[str, str] = {}  # call id -> tool
    for i, entry in enumerate(messages):
        role = entry.get("role") if isinstance(entry, dict) else None
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise RequestRefused(f"message {i} has no role that is served: {json.dumps(role)}")
        calls = tuple(_call(c, i, names) for c in entry.get("tool_calls") or ())
        thinking = entry.get("reasoning_content") or entry.get("reasoning") or ""
        read.append(
            Message(
                role="system" if role == "developer" else role,
                content=_content(entry.get("content"), i),
                thinking=str(thinking) if role == "assistant" else "",
                calls=calls,
                name=str(entry.get("name") or names.get(entry.get("tool_call_id") or "", "")),
            )
        )
    return tuple(read)


def _content(content: JSON, i: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    try:
        return "".join([part["text"] for part in content])
    except (TypeError, KeyError):
        raise RequestRefused(f"message {i} holds content that is no text") from None


def _call(call: JSON, i: int, names: dict[str, str]) -> ToolCall:
    """A call of an earlier turn. One whose arguments are no JSON object cannot be put into the
    chat template."""
    try:
        function = call["function"]
        arguments = function.get("arguments") or {}
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(arguments, dict):
            raise ValueError("no object")
        names[str(call.get("id") or "")] = function["name"]
        return ToolCall(name=str(function["name"]), arguments=arguments)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise RequestRefused(
            f"message {i} holds a tool call without a name or with arguments that are no JSON object"
        ) from None
