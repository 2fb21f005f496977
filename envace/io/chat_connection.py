"""Requests over the wire to one OpenAI-compatible server, by the `openai` package.

Flows in: where a model is and how it is asked (`ChatOptions`); bodies. Flows out: `ChatReply` or `ChatFault`.
Invariant: the key is read from the environment variable that `key_env` names and stands in the header of a
request alone: not in a log, a fault, a record or a repr; an answer that repeats it is blanked. Redirects are
not followed, an attempt ends by its deadline however slowly a server sends, and an answer has a limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import httpx
import openai

from envace.errors import EnvironmentUnready
from envace.io.addresses import host, is_loopback, shown
from envace.io.chat_reply import ChatFault, ChatReply, fault_of_status, read_completion, retry_after
from envace.types import JSON

LARGEST_ANSWER = 16_000_000
"""Bytes."""
IDLE_S = 4.0
"""A connection idle for longer is closed by us, before common servers close it (5 s) under a request."""
SHORTEST_KEY = 8
"""A shorter one is a stand-in such as EMPTY, which an answer may hold as a word."""
SENT_HEADERS = frozenset(
    "host accept accept-encoding connection user-agent content-type content-length authorization".split()
)
Body = Mapping[str, JSON]
for _name in ("openai", "httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # their lower levels tell addresses and headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """One model and how it is asked."""

    model: str
    servers: Mapping[str, float]
    """Base address (with or without /v1) -> weight; all serve `model` and take the same key."""
    key_env: str = ""
    timeout_s: float = 120.0
    """Of one attempt, to its last byte."""
    attempts: int = 4
    concurrency: int = 64
    """Requests in flight over all servers of an event loop."""
    backoff_s: float = 1.0
    """Mean of the first pause after a server's fault; each next one doubles."""
    longest_wait_s: float = 120.0
    """That a server's Retry-After is heeded."""
    extra_body: Mapping[str, JSON] = field(default_factory=dict)
    refusal_fails: bool = True
    """A model's refusal is the fault `refused_by_model`; else it is a reply."""
    what: str = "the server"
    """Who is asked, in messages for people."""

    def key(self) -> str:
        """The key's value, or "". Raises EnvironmentUnready when its variable is unset or no header can hold
        it."""
        value = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        if self.key_env and not value:
            at = shown(next(iter(self.servers)))
            raise EnvironmentUnready(
                f"{self.what} at {at} needs a key: set the environment variable {self.key_env}"
            )
        if not (value.isascii() and value.isprintable()):
            raise EnvironmentUnready(f"{self.key_env} holds characters no key has; set it to the key alone")
        return value


class ChatConnection:
    """The SDK's client over connections that follow no redirect, use no proxy for this machine and bound an
    answer.

    It belongs to the event loop it is made in.
    """

    def __init__(
        self, base_url: str, options: ChatOptions, transport: httpx.AsyncBaseTransport | None = None
    ):
        self._options, self._key = options, options.key()
        parts = urlsplit(base_url)
        login = (unquote(parts.username or ""), unquote(parts.password or ""))
        http = httpx.AsyncClient(
            transport=transport,
            trust_env=not is_loopback(base_url),  # a proxy is for other machines
            auth=login if any(login) else None,
            timeout=httpx.Timeout(options.timeout_s),
            limits=httpx.Limits(max_connections=options.concurrency, keepalive_expiry=IDLE_S),
            follow_redirects=False,
            event_hooks={"request": [_only_known_headers], "response": [_bounded]},
        )
        self._client = openai.AsyncOpenAI(
            base_url=base_url.replace(parts.netloc, host(base_url), 1),
            api_key=self._key or "none",
            default_headers={"Accept-Encoding": "identity"},
            max_retries=0,  # counted by reason and sent to another server, in `ChatClient`
            timeout=options.timeout_s,
            http_client=http,  # type: ignore[arg-type]  # the SDK takes httpx and its own successor of it
        )

    async def send(self, body: Body) -> ChatReply:
        """One request. Raises ChatFault."""
        o, authorization = self._options, f"Bearer {self._key}" if self._key else openai.Omit()
        try:
            async with asyncio.timeout(o.timeout_s):  # the whole request: a dripping server ends too
                answer = await self._client.post(
                    "/chat/completions",
                    cast_to=httpx.Response,
                    content=json.dumps(body).encode("ascii"),
                    options={"headers": {"Authorization": authorization}},
                )
        except (TimeoutError, openai.APITimeoutError):
            raise ChatFault("timeout", f"{o.timeout_s:g} s", blamed=True) from None
        except openai.APIStatusError as e:
            wait = retry_after(e.response.headers.get("Retry-After"), o.longest_wait_s)
            raise fault_of_status(e.status_code, self._blanked(e.response.content), wait) from None
        except (openai.OpenAIError, httpx.InvalidURL, OSError, UnicodeError) as e:
            name = type(e.__cause__ or e).__name__  # their text may hold an address with a password
            raise ChatFault("unreachable", name, blamed=True) from None
        return read_completion(self._blanked(answer.content))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _blanked(self, content: bytes) -> str:
        text = content.decode("utf-8", "replace")
        return text.replace(self._key, "[key]") if len(self._key) >= SHORTEST_KEY else text


async def _only_known_headers(request: httpx.Request) -> None:
    """The SDK tells servers about this machine and adds headers from variables meant for another one."""
    for name in set(request.headers) - SENT_HEADERS:
        del request.headers[name]


async def _bounded(response: httpx.Response) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ChatFault("unreachable", "compressed though not asked for", blamed=True)
    if isinstance(response.stream, httpx.AsyncByteStream):
        response.stream = _Bounded(response.stream)


class _Bounded(httpx.AsyncByteStream):
    """An answer's bytes up to a limit."""

    def __init__(self, stream: httpx.AsyncByteStream):
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > LARGEST_ANSWER:
                raise ChatFault("too_large", "an endless reply", blamed=True)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
