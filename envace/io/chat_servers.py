"""Which of several servers of one model is asked next.

Flows in: how each request went. Flows out: the server for the next one. Choice: the least (requests in flight
+ 1) x seconds a request / weight over servers that do not rest, those first that a question has not failed
at. A server that fails several times in a row, or asks for a wait, rests; after it one request tries it
again. Where every server rests, the one that is back first is asked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from envace.io.chat_reply import ChatFault

LONGEST_PAUSE_S = 30.0
FAULTS_TO_REST = 3
"""In a row; fewer are the odd failed request of a server that works."""
_jitter = random.Random()
"""Its own: asking must not move anybody's seeded stream."""
FORGET_S = 30.0
"""After which half of what was measured of a slow server is forgotten, so that it is tried again."""


@dataclass(slots=True, eq=False)
class ChatServer:
    """One address, and what is known of it."""

    base_url: str
    weight: float = 1.0
    in_flight: int = 0
    seconds: float = 0.0
    """A request takes, smoothed; 0 while unknown."""
    measured: float = 0.0
    faults: int = 0
    """In a row."""
    rests: int = 0
    """In a row: pauses since its last answer."""
    rests_until: float = 0.0
    not_before: float = 0.0
    """When its Retry-After is over."""
    refused: frozenset[str] = frozenset()
    """Fields of a request that it takes under another name or not at all."""

    def answered(self, seconds: float) -> None:
        """An answer came, whatever stands in it."""
        self.faults = self.rests = 0
        self.seconds = 0.8 * self.seconds + 0.2 * seconds if self.seconds else seconds
        self.measured = time.monotonic()

    def failed(self, fault: ChatFault, backoff_s: float) -> None:
        """A fault of the server's own; those of one rest count once."""
        now = time.monotonic()
        self.faults += 1
        if fault.wait_s:
            self.not_before = max(self.not_before, now + fault.wait_s)
        if fault.wait_s or (self.faults >= FAULTS_TO_REST and self.rests_until <= now):
            self.rests += self.rests_until <= now
            self.rests_until = max(self.rests_until, now + (fault.wait_s or pause(backoff_s, self.rests)))


def pause(backoff_s: float, nth: int) -> float:
    """Doubles with each fault up to a limit, with random spread."""
    return min(backoff_s * 2.0 ** min(nth - 1, 20), LONGEST_PAUSE_S) * _jitter.uniform(0.5, 1.5)


def choose(servers: Sequence[ChatServer], failed_at: Collection[ChatServer]) -> ChatServer:
    """The server for the next request of a question that has failed at some."""
    now = time.monotonic()
    # one request at a time as long as a server has not answered since its last rest
    ready = [s for s in servers if s.rests_until <= now and not (s.rests and s.in_flight)]
    if not ready:
        return min(servers, key=lambda s: max(s.rests_until, s.not_before))
    fastest = min((s.seconds for s in servers if s.seconds), default=1.0)

    def load(s: ChatServer) -> tuple[float, float]:
        slower: float = max(0.0, s.seconds - fastest) * 0.5 ** ((now - s.measured) / FORGET_S)
        return (s.in_flight + 1) * (fastest + slower) / s.weight, _jitter.random()

    return min([s for s in ready if s not in failed_at] or ready, key=load)
