"""One request to a server and its reply, whatever that server does.

Flows in: an address and the bytes of a request. Flows out: `Reply`, or `JudgeFault` with a named reason.
Invariant: a request ends by its deadline; no text a server sent and no header we sent is in a fault; a redirect is
not followed, so that the key goes to nobody else.
"""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import time
import urllib.request
import weakref
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from envace.judge.options import Options
from envace.judge.verdicts import JudgeFault

LARGEST_REPLY = 16_000_000  # bytes
IDLE_S = (
    4.0  # a connection idle for longer is closed by us, before common servers close it (5 s) under a request
)
LONGEST_RETRY_AFTER_S = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    wait_s: float  # as Retry-After asks, 0 without one
    content: bytes


class Wire:
    """The connections of one event loop. Made inside it; dropped quietly when nobody closes it."""

    def __init__(self, options: Options):
        self._timeout_s, key = options.timeout_s, options.key()
        self._proxies = {url: _proxy(url) for url, _ in options.endpoints}
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, ssl=_trust(options)),
            headers=headers,
            timeout=aiohttp.ClientTimeout(
                total=options.timeout_s
            ),  # the whole request: a dripping server ends too
            cookie_jar=aiohttp.DummyCookieJar(),
            raise_for_status=False,
        )
        self._drop = weakref.finalize(
            self, _drop, self._session, asyncio.get_running_loop()
        )  # where nobody closes the judge

    async def post(self, url: str, body: bytes) -> Reply:
        """Raises JudgeFault: judge_timeout, judge_unreachable or, for an endless reply, judge_malformed."""
        try:
            async with self._session.post(
                url, data=body, allow_redirects=False, proxy=self._proxies.get(url)
            ) as response:
                wait = retry_after(response.headers.get("Retry-After"))
                return Reply(response.status, wait, await _content(response))
        except TimeoutError:
            raise JudgeFault("judge_timeout", f"{self._timeout_s:g} s", blamed=True) from None
        except (
            aiohttp.ClientError,
            OSError,
            UnicodeError,
        ) as e:  # its text may hold an address with a password
            raise JudgeFault("judge_unreachable", type(e).__name__, blamed=True) from None

    async def aclose(self) -> None:
        self._drop.detach()
        await self._session.close()


async def _content(response: aiohttp.ClientResponse) -> bytes:
    if (response.content_length or LARGEST_REPLY + 1) <= LARGEST_REPLY:
        return await response.read()
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > LARGEST_REPLY:
            raise JudgeFault("judge_malformed", "an endless reply", blamed=True)
    return bytes(content)


def retry_after(value: str | None, longest_s: float = LONGEST_RETRY_AFTER_S) -> float:
    """Seconds a Retry-After header asks for, at most `longest_s`; 0 where it says nothing readable."""
    try:
        seconds = float(value or 0)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value or "").timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), longest_s) if seconds == seconds else 0.0


def _proxy(url: str) -> str | None:
    """The proxy the environment names for an address, looked up once."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _trust(options: Options) -> ssl.SSLContext | bool:
    """The certificates httpx trusts: those it brings, or SSL_CERT_FILE's. Not loaded where nobody speaks https."""
    if not any(url.startswith("https") for url, _ in options.endpoints):
        return True
    import httpx

    return httpx.create_ssl_context()


def _drop(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Close connections that nobody closed, wherever their event loop stands."""
    closing = session.close()
    if loop.is_running():
        loop.call_soon_threadsafe(loop.create_task, closing)
    elif not loop.is_closed():
        loop.run_until_complete(closing)
    else:
        try:
            closing.send(None)  # by hand: without a loop nothing is waited for
        except StopIteration:
            pass
        finally:
            closing.close()
