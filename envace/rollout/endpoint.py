"""A policy behind an OpenAI-compatible server.

Flows in: requests. Flows out: completions whose text is put together from content, reasoning and structured
calls, so that the same parser reads every policy.
Invariant: the key is read from the environment variable named by `key_env` and appears in no message. An attempt ends
by its deadline however slowly the server sends. Output ids are re-encoded text (or empty without a renderer): good for
evaluation, not for training.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any
from urllib.parse import urlsplit

from envace.chat.calls import render_calls
from envace.chat.renderer import Renderer, as_dicts
from envace.chat.text import clip, sanitise
from envace.errors import EnvironmentUnready
from envace.policy.protocol import Completion, GenerationRequest
from envace.types import Endpoint, FinishReason, ToolCall

FINISH = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
RETRIED = {408, 409, 429, 500, 502, 503, 504}
LARGEST = 16_000_000  # bytes of an answer
LONGEST_WAIT_S = 30.0  # that a server's Retry-After is heeded


class EndpointPolicy:
    """`EndpointPolicy(Endpoint(base_url="http://host:8000/v1", model="name"))`. Close with `await aclose()`."""

    def __init__(
        self,
        endpoint: Endpoint,
        renderer: Renderer | None = None,
        *,
        timeout_s: float = 120.0,
        attempts: int = 4,
        backoff_s: float = 0.5,
        extra: dict[str, Any] | None = None,
        transport: Any = None,
    ):
        base = endpoint.base_url.rstrip("/")
        self.url = f"{base if urlsplit(base).path else base + '/v1'}/chat/completions"
        self.endpoint, self.renderer, self.context = endpoint, renderer, endpoint.context
        self.timeout_s, self.attempts, self.backoff_s = timeout_s, attempts, backoff_s
        self.extra = {**endpoint.extra_body, **(extra or {})}
        self._transport, self._client = transport, None

    async def generate(self, request: GenerationRequest) -> Completion:
        """Raises EnvironmentUnready when the server cannot be used, naming its URL."""
        answer = await self._post(self._body(request))
        try:
            choice = answer["choices"][0]
            text = _text(choice["message"])
        except (KeyError, IndexError, TypeError):
            raise EnvironmentUnready(f"{self.url} did not answer with a chat completion") from None
        ids = tuple(self.renderer.encode(text)) if self.renderer else ()
        finish = FINISH.get(choice.get("finish_reason") or "stop", FinishReason.STOP)
        return Completion(text=text, output_ids=ids, finish=finish)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> EndpointPolicy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        s = request.sampling
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": as_dicts(request.messages, arguments_as_text=True),
            "temperature": s.temperature,
            "top_p": s.top_p,
            "max_tokens": s.max_tokens,
        }
        if request.tools:
            body["tools"] = list(request.tools)
        if s.seed is not None:
            body["seed"] = s.seed
        if s.top_k > 0:
            body["top_k"] = s.top_k
        return {**body, **self.extra}

    def _headers(self) -> dict[str, str]:
        name = self.endpoint.key_env
        if not name:
            return {}
        if not os.environ.get(name):
            raise EnvironmentUnready(f"{self.url} needs a key: set the environment variable {name}")
        return {"Authorization": f"Bearer {os.environ[name]}"}

    async def _post(self, body: dict[str, Any]) -> Any:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self.timeout_s, transport=self._transport)
        headers, problem, wait = self._headers(), "", 0.0
        for attempt in range(self.attempts):
            if attempt:
                await asyncio.sleep(max(wait, self.backoff_s * 2 ** (attempt - 1) * (0.5 + random.random())))
            try:
                async with asyncio.timeout(self.timeout_s):
                    status, wait, content = await self._once(body, headers)
            except httpx.TransportError as e:
                problem = str(e) or type(e).__name__
                continue
            except TimeoutError:
                problem = f"no answer within {self.timeout_s:g} s"
                continue
            if status == 200:
                return _json(content, self.url)
            problem = f"status {status}: {clip(sanitise(content.decode(errors='replace')), 300)}"
            if status not in RETRIED:
                break
        raise EnvironmentUnready(f"{self.url} does not serve {self.endpoint.model!r}: {problem}")

    async def _once(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, float, bytes]:
        """Status, seconds that Retry-After asks for, and the answer."""
        async with self._client.stream("POST", self.url, json=body, headers=headers) as response:
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > LARGEST:
                    raise EnvironmentUnready(f"{self.url} sends an answer without end")
            return response.status_code, _wait(response.headers.get("Retry-After")), bytes(content)


def _wait(asked: str | None) -> float:
    if not asked:
        return 0.0
    from envace.judge.wire import retry_after

    return retry_after(asked, LONGEST_WAIT_S)


def _json(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        raise EnvironmentUnready(f"{url} answered 200 with a body that is not JSON") from None


def _text(message: dict[str, Any]) -> str:
    """The assistant text a model with inline tags would have written."""
    thinking = message.get("reasoning_content") or message.get("reasoning") or ""
    parts = [f"<think>\n{thinking}\n</think>\n" if thinking else "", message.get("content") or ""]
    parts += [_block(call["function"]) for call in message.get("tool_calls") or ()]
    return sanitise("\n".join(p for p in parts if p))


def _block(function: dict[str, Any]) -> str:
    """Arguments that are not a JSON object stay as they came, so that the parser names what is wrong."""
    arguments = function.get("arguments")
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        value = None
    if isinstance(value, dict):
        return render_calls([ToolCall(name=function.get("name") or "", arguments=value)])
    name = json.dumps(function.get("name"))
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
