"""The project's one client of OpenAI-compatible chat servers.

Flows in: a request's body. Flows out: `ChatReply`, or `ChatFault` once the attempts are spent; what it took
is on a `ChatBill`.
Invariant: one question ends within attempts x (deadline + pause), and every request is on the bill, also
those that failed.

    client = ChatClient(ChatOptions(model="m", servers={"http://127.0.0.1:8000/v1": 1.0}, key_env="MY_KEY"))
    reply = await client.ask({"messages": [...], "max_tokens": 100}, bill=(bill := ChatBill()))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from envace.io.addresses import base_address, host
from envace.io.chat_connection import Body, ChatConnection, ChatOptions
from envace.io.chat_reply import ChatBill, ChatFault, ChatReply
from envace.io.chat_servers import ChatServer, choose, pause

__all__ = ["ChatBill", "ChatClient", "ChatFault", "ChatOptions", "ChatReply"]
REFUSALS = frozenset({400, 415, 422, 501})
"""What servers answer to a field or value they do not take."""
RENAMED = {"max_tokens": "max_completion_tokens", "response_format": ""}
"""The other name of a field that a server refuses; without one it is left out."""
ELSEWHERE = frozenset({401, 402, 403, 404, 405})
"""This server will not; another of the same model may."""


class ChatClient:
    """Asks the servers of `options`. Raises EnvironmentUnready at once when the key's variable is not set.

    Connections belong to the running event loop and are kept for as long as it is, so one client serves
    several loops. `sleep` is called for pauses between requests and may raise to end a question there.
    `shorter` gets what a server said to a refused request and its `max_tokens`, and returns fewer to ask for
    instead, or 0.
    """

    def __init__(
        self,
        options: ChatOptions,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        shorter: Callable[[str, int], int] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self.options, self.bill = options, ChatBill()
        self.addresses = {
            base_address(url, f"{options.what}'s address"): weight for url, weight in options.servers.items()
        }
        self._sleep, self._shorter, self._transport = sleep, shorter, transport
        self._open: dict[asyncio.AbstractEventLoop, _Connections] = {}
        options.key()

    async def ask(
        self,
        body: Body | Callable[[], Body],
        check: Callable[[ChatReply], None] | None = None,
        bill: ChatBill | None = None,
    ) -> ChatReply:
        """One question, asked until an answer is usable or the attempts are spent. Raises the last ChatFault.

        `body` may be a function, called for each attempt. `check` may raise ChatFault for a reply it has no
        use for: it is asked again. `bill` is added to beside the client's own, whatever happens.
        """
        own, open_, failed_at, attempt = ChatBill(), self._connections(), list[ChatServer](), 1
        try:
            while True:
                try:
                    asked = body() if callable(body) else body
                    return await self._attempt(open_, asked, check, own, failed_at)
                except ChatFault as fault:
                    own.faults[fault.reason] += 1
                    if not fault.again or attempt == self.options.attempts:
                        raise
                    # none after an answer of no use, nor while there is a server that has not failed yet
                    pauses = fault.blamed and len(set(failed_at)) == len(open_.clients)
                    nth = len(failed_at) - len(open_.clients) + 1
                await self._sleep(pause(self.options.backoff_s, nth) if pauses else 0.0)
                attempt, own.retries = attempt + 1, own.retries + 1
        finally:
            for total in filter(None, (self.bill, bill)):
                total.add(own)

    def leaves_out(self, name: str) -> bool:
        """Whether every server of the running loop has refused a field, so that it is no longer sent."""
        return all(name in server.refused for server in self._connections().clients)

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        open_ = self._open.pop(asyncio.get_running_loop(), None)
        for client in open_.clients.values() if open_ else ():
            await client.aclose()

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _attempt(
        self,
        open_: _Connections,
        body: Body,
        check: Callable[[ChatReply], None] | None,
        bill: ChatBill,
        failed_at: list[ChatServer],
    ) -> ChatReply:
        """One attempt at the server that is best now; how it went is noted of the server and on the bill."""
        async with open_.gate:
            server = choose(list(open_.clients), failed_at)
            while (wait := server.not_before - time.monotonic()) > 0:
                await self._sleep(wait)
                server = choose(list(open_.clients), failed_at)
            server.in_flight += 1
            began = time.monotonic()
            try:
                reply = await self._adapted(server, open_.clients[server], body, bill)
            except ChatFault as fault:
                if fault.status in ELSEWHERE and len(open_.clients) > 1:
                    fault.again = fault.blamed = True
                if fault.blamed:
                    failed_at.append(server)
                    server.failed(fault, self.options.backoff_s)
                else:
                    server.answered(time.monotonic() - began)
                raise
            finally:
                server.in_flight -= 1
        server.answered(seconds := time.monotonic() - began)
        bill.note(reply, seconds, "" if reply.refused else host(server.base_url))
        if reply.refused and self.options.refusal_fails:
            raise ChatFault("refused_by_model", "by the model", again=False)
        if check:
            check(reply)
        return reply

    async def _adapted(
        self, server: ChatServer, connection: ChatConnection, body: Body, bill: ChatBill
    ) -> ChatReply:
        """The answer to one request, put more simply where the server refuses how it is put.

        Fields it takes in the simpler form are remembered; a limit that leaves no room for the prompt is this
        request's.
        """
        request, refused = {"model": self.options.model, **body, **self.options.extra_body}, server.refused
        while True:
            sent = {RENAMED.get(k, k) if k in refused else k: v for k, v in request.items()}
            sent.pop("", None)
            bill.requests += 1
            try:
                reply = await connection.send(sent)
            except ChatFault as fault:
                limit = sent.get("max_tokens", 0)
                shorter = (
                    self._shorter(fault.said, limit) if self._shorter and limit and fault.status == 400 else 0
                )
                if shorter:
                    request["max_tokens"] = shorter
                elif fault.status in REFUSALS and "max_completion_tokens" in fault.said and limit:
                    refused |= {"max_tokens"}
                elif fault.status in REFUSALS and "response_format" in sent:
                    refused |= {"response_format"}
                else:
                    raise
            else:
                server.refused = refused
                return reply

    def _connections(self) -> _Connections:
        loop = asyncio.get_running_loop()
        if loop not in self._open:
            self._open = {old: kept for old, kept in self._open.items() if not old.is_closed()}
            servers = [ChatServer(url, weight) for url, weight in self.addresses.items()]
            clients = {s: ChatConnection(s.base_url, self.options, self._transport) for s in servers}
            self._open[loop] = _Connections(clients, asyncio.Semaphore(self.options.concurrency))
        return self._open[loop]


@dataclass(slots=True)
class _Connections:
    """What an event loop has of a client; nothing in it can be shared between loops."""

    clients: dict[ChatServer, ChatConnection]
    gate: asyncio.Semaphore
