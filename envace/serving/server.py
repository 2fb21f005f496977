"""A small server for a folder of weights: `python -m envace.serving.server FOLDER --name NAME --port PORT`.

It answers OpenAI requests with the project's own generator (`envace.policy`), rendered with the folder's chat
template. Invariant: only 127.0.0.1 is listened on. A seeded request is answered alike whoever else asks at
the time. A prompt that leaves no room in the context is refused with status 400, never cut; one that leaves
less than was asked for gets the room there is. No text of a request or reply is logged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web

from envace.chat.renderer import HFRenderer
from envace.errors import boundary
from envace.policy.generator import GenerationJob
from envace.policy.local import LocalPolicy
from envace.serving import replies
from envace.serving.requests import ChatRequest, CompletionRequest, RequestRefused, TextRequest, read
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
        """The server's addresses."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_named_errors])
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{name:.+}", self.model)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.text)
        app.router.add_post("/tokenize", self.tokenize)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._card(name) for name in self.names]})

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response(self._card(request.match_info["name"]))

    def _card(self, name: str) -> dict[str, JSON]:
        """What the list of models says of one. Raises RequestRefused for a name that is not served."""
        if name not in self.names:
            known = ", ".join(self.names)
            raise RequestRefused(f"the model {name!r} is not served here; {known} is", 404, "NotFoundError")
        about = {"object": "model", "owned_by": "envace", "created": 0}
        return {"id": name, **about, "max_model_len": self.context or None}

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = read(ChatRequest, await _body(request))
        written = await self._write(asked, self._prompt(asked))
        about = {"tools": bool(asked.offered()), "one_call": not asked.parallel_tool_calls}
        return await _send(request, replies.chat_completion(written, asked.model, **about), asked)

    async def text(self, request: web.Request) -> web.StreamResponse:
        asked = read(TextRequest, await _body(request))
        prompts = [self._ids(prompt) for prompt in asked.prompts()]
        written = await asyncio.gather(*[self._write(asked, ids) for ids in prompts])
        return await _send(request, replies.completion(written, asked.model), asked)

    async def tokenize(self, request: web.Request) -> web.Response:
        """The ids that the same messages and tools become as a chat, in the form of vLLM's address of that
        name."""
        asked = read(ChatRequest, await _body(request))
        self._card(asked.model)
        ids = self._prompt(asked)
        return web.json_response({"count": len(ids), "max_model_len": self.context or None, "tokens": ids})

    def _prompt(self, asked: ChatRequest) -> list[int]:
        said = asked.chat_template_kwargs.enable_thinking
        return self.renderers[self.thinking if said is None else said].render(
            asked.history(), asked.offered()
        )

    def _ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):  # rendered by the client: its control tokens are meant
            return list(self.tokenizer.encode(prompt, add_special_tokens=False))
        if max(prompt) >= len(self.tokenizer):
            raise RequestRefused("the prompt holds ids that the model does not have")
        return prompt

    async def _write(self, asked: CompletionRequest, ids: Sequence[int]) -> replies.WrittenText:
        self._card(asked.model)
        began, decode = time.monotonic(), self.policy.renderer.decode
        sampling = replace(asked.sampling(self.defaults), max_tokens=self._room(len(ids), asked.limit))
        tail = 4 * max(map(len, asked.stops), default=0) + 4  # tokens: the longest of them fits in

        def stopped(written: Sequence[int]) -> bool:
            text = decode(written[-tail:])
            return any(stop in text for stop in asked.stops)

        job = GenerationJob(
            prompt_ids=tuple(ids), sampling=sampling, stopped=stopped if asked.stops else None
        )
        result = await self.policy.batcher.submit(job)
        text, seconds = decode(result.output_ids), time.monotonic() - began
        ends = [at for stop in asked.stops if (at := text.find(stop)) >= 0]
        print(f"{len(ids)} tokens read, {len(result.output_ids)} written in {seconds:.2f} s", flush=True)
        return replies.WrittenText(
            text=text[: min(ends)] if ends else text,
            finish="stop" if ends else str(result.finish),
            prompt_tokens=len(ids),
            tokens=len(result.output_ids),
        )

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


async def _send(request: web.Request, whole: dict[str, JSON], asked: CompletionRequest) -> web.StreamResponse:
    if not asked.stream:
        return web.json_response(whole)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in replies.stream(whole, asked.stream_options.include_usage):
        await response.write(event)
    await response.write_eof()
    return response


@web.middleware
async def _named_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every error in OpenAI's form; what is nobody's request is a bug, whose traceback stands in the log."""
    try:
        return await handler(request)
    except RequestRefused as e:
        message, status, kind = str(e), e.status, e.kind
        print(f"status {status}: {message[:200]}", flush=True)
    except web.HTTPException as e:
        message, status, kind = e.reason, e.status, type(e).__name__
    except Exception as e:
        traceback.print_exc()
        message, status, kind = f"{type(e).__name__} in the server", 500, "InternalServerError"
    return web.json_response(replies.error(message, status, kind), status=status)


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
