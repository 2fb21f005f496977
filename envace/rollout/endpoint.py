"""A policy behind an OpenAI-compatible server.

Flows in: requests. Flows out: completions whose text is put together from content, reasoning and structured
calls, so that the same parser reads every policy.
Invariant: the key appears in no message. Output ids are re-encoded text (or empty without a renderer): good
for evaluation, not for training.
"""

from __future__ import annotations

import json
from functools import cached_property

import httpx

from envace.chat.calls import render_calls
from envace.chat.renderer import Renderer, as_dicts
from envace.chat.text import clip, sanitise
from envace.errors import EnvironmentUnready
from envace.io.addresses import base_address, shown
from envace.io.chat_client import ChatClient, ChatFault, ChatOptions, ChatReply
from envace.policy.protocol import Completion, GenerationRequest
from envace.types import JSON, Endpoint, FinishReason, ToolCall

FINISH = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class EndpointPolicy:
    """`EndpointPolicy(Endpoint(base_url="http://host:8000/v1", model="name"))`. Close with `await
    aclose()`."""

    def __init__(
        self,
        endpoint: Endpoint,
        renderer: Renderer | None = None,
        *,
        timeout_s: float = 120.0,
        attempts: int = 4,
        concurrency: int = 1024,
        backoff_s: float = 0.5,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self.endpoint, self.renderer, self.context = endpoint, renderer, endpoint.context
        self.url = f"{shown(base_address(endpoint.base_url, 'the address of a policy'))}/chat/completions"
        self._transport = transport
        self._options = ChatOptions(
            model=endpoint.model,
            servers={endpoint.base_url: 1.0},
            key_env=endpoint.key_env,
            timeout_s=timeout_s,
            attempts=attempts,
            concurrency=concurrency,
            backoff_s=backoff_s,
            longest_wait_s=30.0,
            extra_body=endpoint.extra_body,
            refusal_fails=False,
        )

    @cached_property
    def client(self) -> ChatClient:
        """Made when first asked, since a missing key is the failure of a generation."""
        return ChatClient(self._options, transport=self._transport)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Raises EnvironmentUnready when the server cannot be used, naming its URL."""
        s = request.sampling
        body: dict[str, JSON] = {
            "messages": as_dicts(request.messages, arguments_as_text=True),
            "temperature": s.temperature,
            "top_p": s.top_p,
            "max_tokens": s.max_tokens,
        }
        more = {"tools": list(request.tools), "seed": s.seed, "top_k": s.top_k if s.top_k > 0 else None}
        body |= {name: value for name, value in more.items() if value not in (None, [])}
        try:
            reply = await self.client.ask(body)
        except ChatFault as fault:
            why = f"{fault.detail}: {clip(sanitise(fault.said), 300)}" if fault.status else str(fault)
            raise EnvironmentUnready(f"{self.url} does not serve {self.endpoint.model!r}: {why}") from None
        refusal = reply.message.get("refusal")
        text = written_text(reply) or (sanitise(refusal) if isinstance(refusal, str) else "")
        if reply.refused and not text:  # what a provider withheld is no empty message of the policy
            raise EnvironmentUnready(
                f"{self.url} withheld an answer of {self.endpoint.model!r}: content filter"
            )
        ids = tuple(self.renderer.encode(text)) if self.renderer else ()
        return Completion(text=text, output_ids=ids, finish=FINISH.get(reply.finish, FinishReason.STOP))

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self.client.aclose()

    async def __aenter__(self) -> EndpointPolicy:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def written_text(reply: ChatReply) -> str:
    """The assistant text a model with inline tags would have written.

    Arguments that are not a JSON object stay as they came, so that the parser names what is wrong.
    """
    parts = [f"<think>\n{reply.thinking}\n</think>\n" if reply.thinking else "", reply.text]
    for call in reply.calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            parts.append(render_calls([ToolCall(name=call.name, arguments=arguments)]))
        else:
            written = f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
            parts.append(f"<tool_call>\n{written}\n</tool_call>")
    return sanitise("\n".join(part for part in parts if part))
