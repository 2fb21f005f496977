"""Which endpoint is asked next.

Flows in: how each request went. Flows out: the endpoint for the next one, or a fault when every one of them has
been resting for too long.
Invariant: no more than `concurrency` requests are in flight; an endpoint that fails is given half as many at once. One
that fails several times in a row, or asks for a wait, is left alone for a pause; after it, one request tries it again.
A question goes where it has not failed yet, and pauses by itself once it has failed everywhere. Nothing here is bound to a server's own words.

Choice: the least (requests in flight + 1) x seconds a request / weight, over endpoints that do not rest and have room.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from envace.judge.verdicts import JudgeFault

LONGEST_PAUSE_S = 30.0
FAULTS_TO_REST = 3  # in a row; fewer are the odd failed request of a server that works
FORGET_S = (
    30.0  # after which half of what was measured of a slow endpoint is forgotten, so that it is tried again
)


@dataclass(slots=True, eq=False)
class Endpoint:
    """One address, and what is known of it."""

    url: str
    weight: float
    limit: float  # requests it is given at once
    in_flight: int = 0
    seconds: float = 0.0  # a request takes, smoothed; 0 while unknown
    measured: float = 0.0  # when, by the monotonic clock
    faults: int = 0  # in a row
    rests: int = 0  # in a row: pauses since its last answer
    marked: float = 0.0  # when the last fault was taken into account
    rests_until: float = 0.0
    fault: JudgeFault | None = None  # the last one
    structured: bool = True  # it takes response_format
    requests: int = 0
    failed: int = 0

    @property
    def room(self) -> int:
        """Requests it may be given now; one as long as it has not answered since its last rest."""
        return (1 if self.rests else int(self.limit)) - self.in_flight


@dataclass(slots=True)
class Patience:
    """What one question has been through."""

    left: int  # rests of all endpoints it still waits for
    failed_at: list[Endpoint] = field(default_factory=list)  # asked again only where no other has room


class Endpoints:
    """The endpoints of one event loop. `backoff_s` is the mean of the first pause; each next one doubles."""

    def __init__(self, addresses: Sequence[tuple[str, float]], concurrency: int, backoff_s: float):
        self.all = [Endpoint(url, weight, concurrency) for url, weight in addresses]
        self._concurrency, self._backoff_s = concurrency, backoff_s
        self._busy = self._good = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._jitter = random.Random()  # its own: judging must not move anybody's seeded stream

    async def acquire(self, patience: Patience) -> Endpoint:
        """An endpoint with room; give it back with `done`. Raises JudgeFault when patience is out."""
        await self._own_pause(patience)
        full, good = patience.left, self._good
        while True:
            if good != self._good:  # somebody is served: waiting is only queueing
                patience.left, good = full, self._good
            now = time.monotonic()
            ready = [e for e in self.all if e.rests_until <= now]
            if (best := self._best(ready, now, patience)) is not None:
                return self._take(best)
            if ready:
                await self._change()
                continue
            if patience.left <= 0:
                raise self._last_fault()
            patience.left -= 1
            await asyncio.sleep(min(e.rests_until for e in self.all) - now)

    def done(self, e: Endpoint, began: float, fault: JudgeFault | None = None) -> None:
        """How the request that began then went; the fault of a request or a model is no fault of the endpoint."""
        now = time.monotonic()
        e.in_flight, self._busy = e.in_flight - 1, self._busy - 1
        if fault is None or not fault.blamed:
            self._good += 1
            e.faults, e.rests, e.limit = 0, 0, min(self._concurrency, e.limit + 1)
            e.seconds = now - began if not e.seconds else 0.8 * e.seconds + 0.2 * (now - began)
            e.measured = now
        else:
            self._rest(e, began, now, fault)
        self._wake()

    def give_up(self, e: Endpoint) -> None:
        """The request was cancelled by its caller."""
        e.in_flight, self._busy = e.in_flight - 1, self._busy - 1
        self._wake()

    def _take(self, e: Endpoint) -> Endpoint:
        e.in_flight, e.requests, self._busy = e.in_flight + 1, e.requests + 1, self._busy + 1
        return e

    def _rest(self, e: Endpoint, began: float, now: float, fault: JudgeFault) -> None:
        e.failed, e.faults, e.fault = e.failed + 1, e.faults + 1, fault
        if began >= e.marked:  # requests that were already under way tell of the same trouble
            e.limit, e.marked = max(1.0, e.limit / 2), now
        if fault.wait_s or (e.faults >= FAULTS_TO_REST and e.rests_until <= now):
            e.rests += e.rests_until <= now  # one rest, however many requests ask for it
            e.rests_until = max(e.rests_until, now + (fault.wait_s or self._pause(e.rests)))
            asyncio.get_running_loop().call_later(e.rests_until - now, self._wake)

    async def _own_pause(self, patience: Patience) -> None:
        tries = len(patience.failed_at)
        if tries and all(e in patience.failed_at for e in self.all):
            await asyncio.sleep(self._pause(tries - len(self.all) + 1))

    def _pause(self, nth: int) -> float:
        pause = min(self._backoff_s * 2 ** min(nth - 1, 20), LONGEST_PAUSE_S)
        return pause * self._jitter.uniform(0.5, 1.5)

    def _best(self, ready: Sequence[Endpoint], now: float, patience: Patience) -> Endpoint | None:
        free = [e for e in ready if e.room > 0]
        if not free or self._busy >= self._concurrency:
            return None
        free = [e for e in free if e not in patience.failed_at] or free
        if len(free) == 1:
            return free[0]
        fastest = min((e.seconds for e in self.all if e.seconds), default=1.0)

        def cost(e: Endpoint) -> tuple[float, float]:
            slower = max(0.0, e.seconds - fastest) * 0.5 ** ((now - e.measured) / FORGET_S)
            return (e.in_flight + 1) * (fastest + slower) / e.weight, self._jitter.random()

        return min(free, key=cost)

    async def _change(self) -> None:
        """Until there may be room, or nobody is left to wait for."""
        self._waiting.append(turn := asyncio.get_running_loop().create_future())
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake()  # the room this turn was told of is another's
            raise

    def _wake(self) -> None:
        """Call as many as there is room for; all of them when every endpoint rests, so that they count that rest."""
        now = time.monotonic()
        ready = [e for e in self.all if e.rests_until <= now]
        room = sum(max(0, e.room) for e in ready)
        calls = min(room, self._concurrency - self._busy) if ready else len(self._waiting)
        while calls > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                calls -= 1

    def _last_fault(self) -> JudgeFault:
        last = max(self.all, key=lambda e: e.marked).fault
        return last or JudgeFault("judge_unreachable", "no endpoint answers")
