"""A small server for a folder of weights: `python -m envace.serving.server FOLDER --name NAME --port PORT`.

Flows in: OpenAI requests on loopback. Flows out: replies of the project's own generator (`envace.policy`), rendered
with the folder's chat template.
Invariant: only 127.0.0.1 is listened on. A seeded request is answered alike whoever else asks at the time. A prompt
that leaves no room in the context is refused with status 400, never cut; one that leaves less than was asked for gets
the room there is. No text of a request or reply is logged.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from envace.chat.renderer import HFRenderer
from envace.errors import boundary
from envace.policy.generator import Job
from envace.policy.local import LocalPolicy
from envace.serving import reply
from envace.serving.asked import Chat, Common, Refused, Text, read_chat, read_text
from envace.types import Sampling, replace

HOST = "127.0.0.1"
LARGEST_BODY = 1 << 26  # bytes


class Server:
    """One policy under one or more names."""

    def __init__(self, policy: LocalPolicy, names: Sequence[str], thinking: bool = False, context: int = 0):
        self.policy, self.names, self.thinking = policy, list(names), thinking
        own = policy.generator.context
        self.context = min(context or own, own or context)
        self.defaults = _defaults(policy.generator.model.generation_config)
        tokenizer = policy.renderer.tokenizer
        self.renderers = {on: HFRenderer(tokenizer, on) for on in (False, True)}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_named_errors])
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/v1/models", self.models),
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.text),
                web.post("/tokenize", self.tokenize),
            ]
        )
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        about = {"object": "model", "owned_by": "envace", "created": 0, "max_model_len": self.context or None}
        return web.json_response({"object": "list", "data": [{"id": name, **about} for name in self.names]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = read_chat(await _body(request), self.defaults)
        written = await self._write(asked, self._prompt(asked))
        whole = reply.chat_completion(written, asked.model, tools=bool(asked.tools), one_call=asked.one_call)
        return await _send(request, whole, asked)

    async def text(self, request: web.Request) -> web.StreamResponse:
        asked = read_text(await _body(request), self.defaults)
        written = await self._write(asked, self._ids(asked))
        return await _send(request, reply.completion(written, asked.model), asked)

    async def tokenize(self, request: web.Request) -> web.Response:
        """The ids that the same messages and tools become as a chat, in the form of vLLM's address of that name."""
        asked = read_chat(await _body(request), self.defaults)
        self._known(asked)
        ids = list(self._prompt(asked))
        return web.json_response({"count": len(ids), "max_model_len": self.context or None, "tokens": ids})

    def _prompt(self, asked: Chat) -> Sequence[int]:
        renderer = self.renderers[self.thinking if asked.thinking is None else bool(asked.thinking)]
        return renderer.render(asked.messages, asked.tools)

    def _ids(self, asked: Text) -> Sequence[int]:
        tokenizer = self.policy.renderer.tokenizer
        if isinstance(asked.prompt, str):  # rendered by the client: its control tokens are meant
            return tokenizer.encode(asked.prompt, add_special_tokens=False)
        if max(asked.prompt) >= len(tokenizer):
            raise Refused("the prompt holds ids that the model does not have")
        return asked.prompt

    async def _write(self, asked: Common, ids: Sequence[int]) -> reply.Written:
        self._known(asked)
        began = time.monotonic()
        sampling = replace(asked.sampling, max_tokens=self._room(len(ids), asked.max_tokens))
        result = await self.policy.batcher.submit(Job(prompt_ids=tuple(ids), sampling=sampling))
        text = self.policy.renderer.decode(result.output_ids)
        ends = [at for stop in asked.stop if (at := text.find(stop)) >= 0]
        seconds = time.monotonic() - began
        print(f"{len(ids)} tokens read, {len(result.output_ids)} written in {seconds:.2f} s", flush=True)
        return reply.Written(
            text=text[: min(ends)] if ends else text,
            finish="stop" if ends else str(result.finish),
            prompt_tokens=len(ids),
            tokens=len(result.output_ids),
        )

    def _known(self, asked: Common) -> None:
        if asked.model not in self.names:
            known = ", ".join(self.names)
            raise Refused(f"the model {asked.model!r} is not served here; {known} is", 404, "NotFoundError")

    def _room(self, prompt: int, wanted: int | None) -> int:
        """Tokens that may be written: what was asked for, or the room that the prompt leaves if that is less.

        Raises Refused for a prompt that leaves none, in the words that clients look for.
        """
        room = self.context - prompt if self.context else wanted or self.defaults.max_tokens
        if room < 1:
            raise Refused(
                f"This model's maximum context length is {self.context} tokens. The prompt holds {prompt}: "
                "shorten the messages."
            )
        return min(wanted or room, room)


def _defaults(config: Any) -> Sampling:
    """Sampling settings of the folder's generation_config.json, as vLLM takes them."""

    def of(name: str, default: float) -> Any:
        value = getattr(config, name, None)
        return default if value is None else value

    return Sampling(temperature=of("temperature", 1.0), top_p=of("top_p", 1.0), top_k=of("top_k", -1) or -1)


async def _body(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError:
        raise Refused("the body is not JSON") from None


async def _send(
    request: web.Request, whole: dict[str, Any], asked: Chat | Text | Common
) -> web.StreamResponse:
    if not asked.stream:
        return web.json_response(whole)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in reply.stream(whole, asked.usage):
        await response.write(event)
    await response.write_eof()
    return response


@web.middleware
async def _named_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as e:
        print(f"status {e.status}: {str(e)[:200]}", flush=True)
        return web.json_response(reply.error(str(e), e.status, e.kind), status=e.status)
    except web.HTTPException as e:
        return web.json_response(reply.error(e.reason, e.status, type(e).__name__), status=e.status)


def main(argv: list[str] | None = None) -> None:
    """Serve a folder of weights on loopback over the OpenAI protocol."""
    cli = argparse.ArgumentParser(prog="python -m envace.serving.server", description=main.__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--name", required=True, nargs="+", help="names it is asked for by")
    cli.add_argument("--port", type=int, required=True)
    cli.add_argument("--concurrency", type=int, default=16, help="sequences written together (16)")
    cli.add_argument(
        "--context", type=int, default=0, help="tokens of prompt and reply; 0 is what the model holds"
    )
    cli.add_argument("--thinking", action="store_true", help="enable_thinking where a request does not say")
    asked = cli.parse_args(argv)
    with boundary("serving"):
        policy = LocalPolicy(asked.folder, concurrency=asked.concurrency)
        server = Server(policy, asked.name, asked.thinking, asked.context)
        web.run_app(
            server.app(), host=HOST, port=asked.port, access_log=None, print=None, handle_signals=True
        )


if __name__ == "__main__":
    sys.exit(main())
