"""A small server for a folder of weights: `python -m envace.serving.server FOLDER --name NAME --port PORT`.

Flows in: OpenAI requests on loopback. Flows out: replies of the project's own generator (`envace.policy`),
rendered with the folder's chat template.
Invariant: only 127.0.0.1 is listened on. A seeded request is answered alike whoever else asks at the time. A
prompt that leaves no room in the context is refused with status 400, never cut; one that leaves less than was
asked for gets the room there is. No text of a request or reply is logged.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web

from envace.chat.renderer import HFRenderer
from envace.errors import boundary
from envace.policy.generator import GenerationJob
from envace.policy.local import LocalPolicy
from envace.serving import replies
from envace.serving.requests import (
    ChatRequest,
    RequestRefused,
    RequestSettings,
    TextRequest,
    read_chat,
    read_text,
)
from envace.types import JSON, Sampling, replace

HOST = "127.0.0.1"
LARGEST_BODY = 1 << 26
"""Bytes."""


class PolicyServer:
    """One policy under one or more names."""

    def __init__(self, policy: LocalPolicy, names: Sequence[str], thinking: bool = False, context: int = 0):
        self.policy, self.names, self.thinking = policy, list(names), thinking
        self.tokenizer = policy.renderer.tokenizer
        own = policy.generator.context
        self.context = min(context or own, own or context)
        config = policy.generator.model.generation_config  # as vLLM takes it
        said = {name: getattr(config, name, None) for name in ("temperature", "top_p", "top_k")}
        self.defaults = Sampling(**{name: value for name, value in said.items() if value is not None})
        self.defaults = replace(self.defaults, top_k=self.defaults.top_k or -1)
        self.renderers = {on: HFRenderer(self.tokenizer, on) for on in (False, True)}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_named_errors])
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.text)
        app.router.add_post("/tokenize", self.tokenize)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        about = {"object": "model", "owned_by": "envace", "created": 0, "max_model_len": self.context or None}
        return web.json_response({"object": "list", "data": [{"id": name, **about} for name in self.names]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = read_chat(await _body(request), self.defaults)
        written = await self._write(asked.settings, self._prompt(asked))
        about = {"tools": bool(asked.tools), "one_call": asked.one_call}
        whole = replies.chat_completion(written, asked.settings.model, **about)
        return await _send(request, whole, asked.settings)

    async def text(self, request: web.Request) -> web.StreamResponse:
        asked = read_text(await _body(request), self.defaults)
        written = await self._write(asked.settings, self._ids(asked))
        return await _send(request, replies.completion(written, asked.settings.model), asked.settings)

    async def tokenize(self, request: web.Request) -> web.Response:
        """The ids that the same messages and tools become as a chat, in the form of vLLM's address of that
        name.
        """
        asked = read_chat(await _body(request), self.defaults)
        self._check_name(asked.settings.model)
        ids = self._prompt(asked)
        return web.json_response({"count": len(ids), "max_model_len": self.context or None, "tokens": ids})

    def _prompt(self, asked: ChatRequest) -> list[int]:
        renderer = self.renderers[self.thinking if asked.thinking is None else bool(asked.thinking)]
        return renderer.render(asked.messages, asked.tools)

    def _ids(self, asked: TextRequest) -> Sequence[int]:
        if isinstance(asked.prompt, str):  # rendered by the client: its control tokens are meant
            return self.tokenizer.encode(asked.prompt, add_special_tokens=False)
        if max(asked.prompt) >= len(self.tokenizer):
            raise RequestRefused("the prompt holds ids that the model does not have")
        return asked.prompt

    async def _write(self, asked: RequestSettings, ids: Sequence[int]) -> replies.WrittenText:
        self._check_name(asked.model)
        began = time.monotonic()
        sampling = replace(asked.sampling, max_tokens=self._room(len(ids), asked.max_tokens))
        result = await self.policy.batcher.submit(GenerationJob(prompt_ids=tuple(ids), sampling=sampling))
        text = self.policy.renderer.decode(result.output_ids)
        ends = [at for stop in asked.stop if (at := text.find(stop)) >= 0]
        seconds = time.monotonic() - began
        print(f"{len(ids)} tokens read, {len(result.output_ids)} written in {seconds:.2f} s", flush=True)
        return replies.WrittenText(
            text=text[: min(ends)] if ends else text,
            finish="stop" if ends else str(result.finish),
            prompt_tokens=len(ids),
            tokens=len(result.output_ids),
        )

    def _check_name(self, model: str) -> None:
        if model not in self.names:
            known = ", ".join(self.names)
            raise RequestRefused(f"the model {model!r} is not served here; {known} is", 404, "NotFoundError")

    def _room(self, prompt: int, wanted: int | None) -> int:
        """Tokens that may be written: what was asked for, or the room that the prompt leaves if that is less.

        Raises RequestRefused for a prompt that leaves none, in the words that clients look for.
        """
        room = self.context - prompt if self.context else wanted or self.defaults.max_tokens
        if room < 1:
            raise RequestRefused(
                f"This model's maximum context length is {self.context} tokens. The prompt holds {prompt}: "
                "shorten the messages."
            )
        return min(wanted or room, room)


async def _body(request: web.Request) -> JSON:
    try:
        return json.loads(await request.read())
    except ValueError:
        raise RequestRefused("the body is not JSON") from None


async def _send(request: web.Request, whole: dict[str, JSON], asked: RequestSettings) -> web.StreamResponse:
    if not asked.stream:
        return web.json_response(whole)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in replies.stream(whole, asked.usage):
        await response.write(event)
    await response.write_eof()
    return response


@web.middleware
async def _named_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRefused as e:
        print(f"status {e.status}: {str(e)[:200]}", flush=True)
        return web.json_response(replies.error(str(e), e.status, e.kind), status=e.status)
    except web.HTTPException as e:
        return web.json_response(replies.error(e.reason, e.status, type(e).__name__), status=e.status)


def main(argv: list[str] | None = None) -> None:
    """Serve a folder of weights on loopback over the OpenAI protocol."""
    cli = argparse.ArgumentParser(prog="python -m envace.serving.server", description=main.__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--name", required=True, nargs="+", help="names it is asked for by")
    cli.add_argument("--port", type=int, required=True)
    cli.add_argument("--concurrency", type=int, default=16, help="sequences written together (16)")
    cli.add_argument(
        "--context", type=int, default=0, help="tokens of prompt and reply; 0: all the model holds"
    )
    cli.add_argument("--thinking", action="store_true", help="enable_thinking where a request does not say")
    asked = cli.parse_args(argv)
    with boundary("serving"):
        policy = LocalPolicy(asked.folder, concurrency=asked.concurrency)
        app = PolicyServer(policy, asked.name, asked.thinking, asked.context).app()
        web.run_app(app, host=HOST, port=asked.port, access_log=None, print=None, handle_signals=True)


if __name__ == "__main__":
    main()
