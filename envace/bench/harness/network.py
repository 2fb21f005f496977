"""A network of its own for a job: nothing but the addresses it was given, one unix socket each.

Invariant: a loopback address keeps its name and port inside, any other becomes 127.0.0.1:<port>. Whatever
host a request names, it goes to the one origin its socket stands for; TLS is spoken here, with verification;
a redirect is handed back, never followed; an address that cannot be reached is a broken connection.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from multidict import CIMultiDictProxy
from yarl import URL

from envace.bench.harness.spec import HarnessJob
from envace.io.addresses import is_loopback, origin

FIRST_PORT = 20080  # of remote addresses, inside, where every port is free
WAYS = (
    "bwrap --dev-bind / / --proc /proc --unshare-net --unshare-pid --new-session --die-with-parent --",
    "unshare --user --map-root-user --net --pid --fork --kill-child --mount-proc --",
    "unshare --user --map-root-user --net --",  # where /proc may not be mounted
)
CHECK_S, CONNECT_S = 20.0, 30.0
IDLE_S = 4.0  # we close an idle connection before common servers do (5 s), under the next request
LARGEST_REQUEST = 1 << 28  # bytes
# headers of one connection, not of the request
OF_A_CONNECTION = set(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade host content-length".split()
)


@cache
def wrap() -> tuple[str, ...] | None:
    """The command that stands before a program to give it an empty network; None where none is allowed."""
    for way in WAYS:
        program, *options = way.split()
        command = (shutil.which(program) or "", *options)
        try:
            if subprocess.run([*command, "true"], capture_output=True, timeout=CHECK_S).returncode == 0:
                return command
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


def inside(job: HarnessJob) -> tuple[tuple[str, ...], dict[str, int], HarnessJob] | None:
    """The command that stands before the job, origin -> port inside, and the job as it is told there; None
    when it asks for the open web or the system gives no namespace.
    """
    command = None if job.open_network else wrap()
    ports = ports_of(job.reaches)
    return (command, ports, renamed(job, ports)) if command else None


def ports_of(addresses: Sequence[str]) -> dict[str, int]:
    """One port per origin. Loopback first: theirs are given."""
    ports: dict[str, int] = {}
    for address in sorted(addresses, key=lambda a: (not is_loopback(a), a)):
        target = origin(address)
        wanted = urlsplit(target).port if _keeps_name(address) else FIRST_PORT
        while target not in ports and wanted in ports.values():
            wanted = (wanted or 0) + 1 if wanted and wanted < 65535 else FIRST_PORT
        ports.setdefault(target, wanted or FIRST_PORT)
    return ports


def renamed(job: HarnessJob, ports: dict[str, int]) -> HarnessJob:
    """The job with every address written as it is reached inside, user and password kept."""
    names: dict[str, str] = {}
    for address in job.reaches:
        parts, port = urlsplit(address), ports[origin(address)]
        if not (_keeps_name(address) and urlsplit(origin(address)).port == port):
            user, at, _ = parts.netloc.rpartition("@")
            names[f"{parts.scheme}://{parts.netloc}"] = f"http://{user}{at}127.0.0.1:{port}"
    if not names:
        return job
    longest_first = sorted(names, key=len, reverse=True)
    find = re.compile("|".join(re.escape(name) + r"(?![\w.:-])" for name in longest_first))

    def rename(text: str) -> str:
        return find.sub(lambda m: names[m[0]], text)

    return replace(
        job,
        argv=tuple(map(rename, job.argv)),
        env={k: rename(v) for k, v in job.env.items()},
        files={k: rename(v) for k, v in job.files.items()},
    )


def _keeps_name(address: str) -> bool:
    """What a program inside reaches by the same text: plain http on the loopback address it would look up."""
    return urlsplit(address).scheme == "http" and urlsplit(address).hostname in ("localhost", "127.0.0.1")


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
            app.router.add_route("*", "/{rest:.*}", _forward(target, session))
            runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.UnixSite(runner, path).start()
        yield


def _forward(
    target: str, session: aiohttp.ClientSession
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of one origin: any request -> its reply, streamed."""

    async def handle(request: web.Request) -> web.StreamResponse:
        began: web.StreamResponse | None = None
        try:
            async with session.request(
                request.method,
                URL(target + request.raw_path, encoded=True),
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

    return handle


def _lasting(headers: CIMultiDictProxy[str]) -> list[tuple[str, str]]:
    """The headers that are of the request itself, whatever connection it is sent on."""
    named = {part.strip().lower() for value in headers.getall("Connection", ()) for part in value.split(",")}
    return [(k, v) for k, v in headers.items() if k.lower() not in OF_A_CONNECTION | named]
