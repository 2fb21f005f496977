"""Calls to an OpenAI-compatible server that survive what such servers do.

Flows in: a `Question`. Flows out: an `Answer`, a completion or a named fault, with what it took.
Invariant: one call ends within attempts x (deadline + pause). Busy and broken servers are asked again, a wait
they ask for holds for every call; a server that no further call can mend raises EnvironmentUnready once. The key
is in the request's header and nowhere else: a reply that repeats it is blanked before anybody reads it.

Faults: timeout, unreachable, http_<status>, no_completion, too_large, refused_by_model, refused_<status>[_<code>];
`refused*` are final, the others may pass.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

import httpx

from envace.data.annotate.options import Options, chat_url
from envace.data.annotate.wire import (
    CallFault,
    Completion,
    Question,
    Shape,
    body,
    completion,
    error_code,
    lesser,
    retry_after,
)
from envace.errors import EnvironmentUnready
from envace.io.chat_reply import RETRIED_STATUS
from envace.io.chat_servers import LONGEST_PAUSE_S

REFUSALS = {400, 415, 422, 501}  # what servers answer to a field or value they do not take
NO_ACCESS = {
    401: "takes no calls with this key",
    403: "does not allow these calls",
    402: "wants to be paid first",
}
NO_CREDIT = {"insufficient_quota", "billing_not_active", "insufficient_credits"}
LARGEST_REPLY = 16_000_000  # bytes
ECHO = 2000  # bytes; what is longer than a message of an error
SHORTEST_KEY = 8  # a shorter one is a stand-in such as EMPTY, which a reply may hold as a word


class Stopped(Exception):
    """The run was told to stop while a call was waiting for its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one call came to: a completion or a fault, and what it took."""

    completion: Completion | None
    fault: str
    requests: int
    seconds: float
    structured: bool


@dataclass(slots=True)
class _Try:
    """One call under way."""

    question: Question
    requests: int = 0
    structured: bool = False


class Client:
    """`async with Client(options, stop) as client: await client.ask(question)`. Raises EnvironmentUnready.

    `stop` ends waits between requests, never a request. `backoff_s` is the mean of the first pause; each next
    one doubles, with random spread.
    """

    def __init__(self, options: Options, stop: asyncio.Event, *, backoff_s: float = 1.0):
        self.options, self._stop, self._backoff_s = options, stop, backoff_s
        self.url = chat_url(options.base_url)
        self.shape = Shape(structured=not options.plain)
        self._key = options.key()
        self._jitter = random.Random()
        self._not_before = 0.0  # the server's own wish, for all calls
        self._silent = 0  # calls in a row without a completion
        self.answered = False  # whether any call has brought a completion

    async def __aenter__(self) -> Client:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(self.options.timeout_s, connect=min(20.0, self.options.timeout_s)),
            limits=httpx.Limits(max_connections=self.options.concurrency),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def ask(self, question: Question) -> Answer:
        """One call. Raises Stopped, and EnvironmentUnready where no further call can succeed."""
        at, started = _Try(question), time.monotonic()
        found, fault = None, ""
        for attempt in range(self.options.attempts):
            await self._wait(self._pause(attempt) if attempt else 0.0)
            try:
                found, fault = await self._once(at), ""
                break
            except CallFault as e:
                fault = e.reason
                self._not_before = max(self._not_before, time.monotonic() + e.wait_s if e.wait_s else 0.0)
                if not e.again:
                    break
        self._note(fault)
        return Answer(
            completion=found, fault=fault, requests=at.requests,
            seconds=time.monotonic() - started, structured=at.structured,
        )  # fmt: skip

    async def _once(self, at: _Try) -> Completion:
        """One request, put more simply where the server refuses how it is put. Raises CallFault."""
        shape = first = self.shape
        while True:
            status, wait, content = await self._send(at, shape)
            if status == 200:
                if shape is not first:
                    self.shape = shape  # it takes this; ask so from here on
                return completion(content)
            refusal = content.decode("utf-8", "replace")
            simpler = lesser(shape, refusal) if status in REFUSALS else None
            if simpler is None:
                raise self._fault(status, wait, content, at.question)
            shape = simpler

    async def _send(self, at: _Try, shape: Shape) -> tuple[int, float, bytes]:
        """Status, asked-for wait and content of one request. Raises CallFault."""
        o = self.options
        request = body(at.question, shape, o.model, o.max_tokens, o.temperature)
        at.requests += 1
        at.structured = shape.structured
        content = bytearray()
        try:
            async with (
                asyncio.timeout(o.timeout_s),  # the whole request: a dripping server ends too
                self._http.stream("POST", self.url, content=request) as response,
            ):
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > LARGEST_REPLY:
                        raise CallFault("too_large", again=False)
        except (TimeoutError, httpx.TimeoutException):
            raise CallFault("timeout") from None
        except httpx.HTTPError:
            raise CallFault("unreachable") from None
        return response.status_code, retry_after(response.headers.get("Retry-After")), self._blanked(content)

    def _blanked(self, content: bytearray) -> bytes:
        long = len(self._key) >= SHORTEST_KEY
        return bytes(content).replace(self._key.encode(), b"[key]") if long else bytes(content)

    def _fault(self, status: int, wait: float, content: bytes, question: Question) -> CallFault:
        """What a status other than 200 means. Raises EnvironmentUnready where it holds for every call."""
        code, at = error_code(content), self.options.base_url
        flagged = status == 403 and self.answered  # this one text, not the account
        if (status in NO_ACCESS and not flagged) or code in NO_CREDIT:
            why = NO_ACCESS.get(status, NO_ACCESS[402])
            raise EnvironmentUnready(
                f"{at} {why} (HTTP {status}); check the account and the variable named by --key-env"
            )
        if status == 404:
            raise EnvironmentUnready(
                f"{self.url} or its model {self.options.model!r} does not exist (HTTP 404); check --base-url and --model"
            )
        if status in RETRIED_STATUS or status >= 500:
            return CallFault(f"http_{status}", wait_s=wait)
        named = b"reasoning_effort" in content and len(content) < ECHO  # a long answer repeats the request
        if question.effort != "none" and named:
            raise EnvironmentUnready(
                f"{at} takes no reasoning_effort (HTTP {status}); use --passes none,none and --label-effort none"
            )
        code = code or (
            "max_tokens" if b"max_tokens" in content or b"max_completion_tokens" in content else ""
        )
        return CallFault("_".join(filter(None, ("refused", str(status), code))), again=False)

    def _note(self, fault: str) -> None:
        """Count calls without a reply. Raises EnvironmentUnready when the server seems gone for good."""
        refused = fault.startswith("refused")
        if not fault or (refused and self.answered):
            self._silent, self.answered = 0, self.answered or not fault
            return
        self._silent += 1
        if self._silent >= max(8, 2 * self.options.concurrency):
            raise EnvironmentUnready(
                f"{self._silent} calls in a row to {self.options.base_url} came to nothing (last: {fault}); "
                "see to the server (or --max-tokens, where it refuses) and run again, which goes on where this stopped"
            )

    async def _wait(self, seconds: float) -> None:
        """Until the pause is over and the server wants calls again. Raises Stopped."""
        until = time.monotonic() + seconds
        while (left := max(until, self._not_before) - time.monotonic()) > 0 and not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), left)
            except TimeoutError:
                pass  # the wait is over; what is left is computed again
        if self._stop.is_set():
            raise Stopped

    def _pause(self, attempt: int) -> float:
        return min(self._backoff_s * 2 ** (attempt - 1), LONGEST_PAUSE_S) * self._jitter.uniform(0.5, 1.5)
