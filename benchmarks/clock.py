"""An event loop whose sleeps take no time: the seconds a program would need on a machine of its own.

Flows in: a coroutine. Flows out: its result and seconds: CPU of this process plus what was slept, which is
skipped. Invariant: timers run in the order in which they would have run; what another process takes from the
CPU counts for nothing. A loop that waits for a thread or a socket without a timer waits for real, and that is
not counted."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any


class _Skipping(selectors.DefaultSelector):
    """Where nothing is ready, the clock is set forward by the time to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self.skipped += timeout
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """Time is this process's CPU seconds plus what was skipped."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return time.process_time() + self._skipping.skipped


def run(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """The result of `work`, and its seconds."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        loop = runner.get_loop()
        began = loop.time()
        result = runner.run(work)
        return result, loop.time() - began
