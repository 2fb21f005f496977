"""One question to a judge's servers.

Flows in: how to write the request, with and without a schema for its answer. Flows out: the text of one reply.
Invariant: every request is on the bill, also those that failed; what a server refuses to take is left out of later
requests only when it takes them without. A fault says whether asking again may help.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from envace.judge.bill import Bill
from envace.judge.endpoints import Endpoint, Endpoints, Patience
from envace.judge.options import Options, host
from envace.judge.verdicts import JudgeFault, reply_text
from envace.judge.wire import Reply, Wire

RETRIED_STATUS = {408, 409, 425, 429}
SCHEMA_REFUSED = {400, 415, 422, 501}  # what servers answer to a field they do not take
ELSEWHERE = {401, 402, 403, 404, 405}  # this endpoint will not; another may
Write = Callable[[bool], bytes]


class Client:
    """Asks the endpoints of `options`; serves several event loops one after another."""

    def __init__(self, options: Options, backoff_s: float):
        self.options, self._backoff_s = options, backoff_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self.endpoints: Endpoints | None = None

    async def ask(self, write: Write, patience: Patience, bill: Bill) -> str:
        """The text of one reply. Raises JudgeFault."""
        endpoints, wire = self._live()
        endpoint = await endpoints.acquire(patience)
        began = time.monotonic()
        try:
            text = await self._once(wire, endpoint, write, bill)
        except JudgeFault as fault:
            endpoints.done(endpoint, began, fault)
            if fault.blamed:
                patience.failed_at.append(endpoint)
            raise
        except BaseException:
            endpoints.give_up(endpoint)
            raise
        endpoints.done(endpoint, began)
        bill.took(time.monotonic() - began, host(endpoint.url))
        return text

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self._wire.aclose()

    async def _once(self, wire: Wire, endpoint: Endpoint, write: Write, bill: Bill) -> str:
        """One request; a second one without the schema when that may be what was refused."""
        bill.requests += 1
        reply = await wire.post(endpoint.url, write(endpoint.structured))
        if endpoint.structured and reply.status in SCHEMA_REFUSED:
            bill.requests += 1
            reply = await wire.post(endpoint.url, write(False))
            endpoint.structured = reply.status != 200
        if reply.status != 200:
            raise self._fault(reply)
        return reply_text(reply.content, bill)

    def _fault(self, reply: Reply) -> JudgeFault:
        """What a status means. The body is left out: servers echo keys and prompts in it."""
        status = reply.status
        if status in RETRIED_STATUS or status >= 500:
            return JudgeFault("judge_unreachable", f"HTTP {status}", blamed=True, wait_s=reply.wait_s)
        elsewhere = status in ELSEWHERE and len(self.options.endpoints) > 1
        return JudgeFault("judge_refused", f"HTTP {status}", again=elsewhere, blamed=elsewhere)

    def _live(self) -> tuple[Endpoints, Wire]:
        """Endpoints and connections of the running event loop; neither can be shared between loops."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self.endpoints is None:
            self._wire = Wire(self.options)
            self.endpoints = Endpoints(self.options.endpoints, self.options.concurrency, self._backoff_s)
            self._loop = loop
        return self.endpoints, self._wire
