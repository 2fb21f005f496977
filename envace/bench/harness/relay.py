"""The outside end of a job's only ways out: one unix socket per address, each led to that address and no
other.

Flows in: base addresses (http or https), HTTP requests on the sockets. Flows out: the requests sent on to the
address, its replies streamed back unchanged.
Invariant: whatever host a request names, it goes to the one origin its socket stands for; TLS is spoken here,
with verification; a redirect is handed back, never followed. An address that cannot be reached ends the
connection, as it would without a relay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import httpx
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from multidict import CIMultiDictProxy
from yarl import URL

from envace.io.addresses import is_loopback, origin

CONNECT_S = 30.0
IDLE_S = 4.0  # we close an idle connection before common servers do (5 s), under the next request
LARGEST_REQUEST = 1 << 28  # bytes
OF_A_CONNECTION = set(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade host content-length".split()
)
"""Headers of one connection, not of the request."""


@contextmanager
def relayed(addresses: Iterable[str], folder: Path) -> Iterator[dict[str, str]]:
    """origin -> path of the socket that leads to it, in the block. The folder's path must be short."""
    sockets = {o: str(folder / f"{i}.sock") for i, o in enumerate(sorted({origin(a) for a in addresses}))}
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_served(sockets)):
        yield sockets


@asynccontextmanager
async def _served(sockets: dict[str, str]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for target, path in sockets.items():
            # the certificates httpx trusts: those it brings, or SSL_CERT_FILE's
            trusted = httpx.create_ssl_context() if target.startswith("https") else True
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, ssl=trusted),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=not is_loopback(target),
            )
            await stack.enter_async_context(session)
            app = web.Application(client_max_size=LARGEST_REQUEST)
            app.router.add_route("*", "/{rest:.*}", _Forward(target, session))
            runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.UnixSite(runner, path).start()
        yield


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
                headers=_lasting(request.headers),
                data=await request.read() if request.body_exists else None,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                allow_redirects=False,
            ) as reply:
                headers = _lasting(reply.headers)
                began = web.StreamResponse(status=reply.status, reason=reply.reason, headers=headers)
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


def _lasting(headers: CIMultiDictProxy[str]) -> list[tuple[str, str]]:
    """The headers that are of the request itself, whatever connection it is sent on."""
    named = {part.strip().lower() for value in headers.getall("Connection", ()) for part in value.split(",")}
    return [(k, v) for k, v in headers.items() if k.lower() not in OF_A_CONNECTION | named]
