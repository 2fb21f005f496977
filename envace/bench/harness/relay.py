"""The outside end of a job's only ways out: one unix socket an address, each led to that address and no
other.

Flows in: base addresses (http or https), HTTP requests on the sockets. Flows out: the requests sent on to the
address, its replies streamed back unchanged. Invariant: whatever host a request names, it goes to the one
origin its socket stands for; TLS is spoken here, with verification; a redirect is handed back, never
followed. An address that cannot be reached ends the connection, as it would without a relay."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import httpx
from aiohttp import web
from multidict import CIMultiDictProxy
from yarl import URL

from envace.io.addresses import is_loopback, origin

CONNECT_S = 30.0
IDLE_S = 4.0  # we close an idle connection before common servers do (5 s), under the next request
LARGEST_REQUEST = 1 << 28  # bytes
HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
}  # of one connection, not of the request


class Relay:
    """`with Relay(addresses, folder) as sockets:` origin -> path of its socket. The folder's path must be
    short."""

    def __init__(self, addresses: Iterable[str], folder: Path):
        origins = sorted({origin(a) for a in addresses})
        self.sockets = {o: str(folder / f"{i}.sock") for i, o in enumerate(origins)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._runners: list[web.AppRunner] = []
        self._sessions: list[aiohttp.ClientSession] = []

    def __enter__(self) -> dict[str, str]:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)
        except BaseException:
            self.__exit__()
            raise
        return self.sockets

    def __exit__(self, *_: object) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    async def _open(self) -> None:
        for target, path in self.sockets.items():
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, ssl=_trust(target)),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=not is_loopback(target),
            )
            self._sessions.append(session)
            app = web.Application(client_max_size=LARGEST_REQUEST)
            app.router.add_route("*", "/{rest:.*}", _Forward(target, session))
            runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
            await runner.setup()
            self._runners.append(runner)
            await web.UnixSite(runner, path).start()

    async def _close(self) -> None:
        for thing in self._runners:
            await thing.cleanup()
        for session in self._sessions:
            await session.close()


class _Forward:
    """One origin: any request -> its reply, streamed."""

    def __init__(self, target: str, session: aiohttp.ClientSession):
        self._target, self._session = target, session

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        began: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                URL(self._target + request.raw_path, encoded=True),
                headers=_kept(request.headers),
                data=await request.read() if request.body_exists else None,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                allow_redirects=False,
            ) as reply:
                began = web.StreamResponse(
                    status=reply.status, reason=reply.reason, headers=_kept(reply.headers)
                )
                if reply.content_length is not None and request.method != "HEAD":
                    began.content_length = reply.content_length
                await began.prepare(request)
                async for piece in reply.content.iter_any():
                    await began.write(piece)
                await began.write_eof()
                return began
        except (aiohttp.ClientError, OSError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()  # a broken connection, not a made-up status
            return began or web.Response(status=502)


def _kept(headers: CIMultiDictProxy[str]) -> list[tuple[str, str]]:
    named = {part.strip().lower() for value in headers.getall("Connection", ()) for part in value.split(",")}
    return [(k, v) for k, v in headers.items() if k.lower() not in HOP | named]


def _trust(target: str) -> bool | ssl.SSLContext:
    """The certificates httpx trusts: those it brings, or SSL_CERT_FILE's."""
    if not target.startswith("https"):
        return True
    return httpx.create_ssl_context()
