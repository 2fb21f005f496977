"""Concurrent requests -> one generator: every submit is answered once, with its result or with the error that
ended the generator's work."""

from __future__ import annotations

import asyncio

from envace.policy.generator import BatchGenerator, GenerationJob, GenerationResult

GATHER = 4
"""Steps that few new jobs wait for more to be read with: one prompt costs as much as a whole step."""


class AsyncBatcher:
    """Feeds concurrent `submit`s to a generator that works on a thread beside the event loop.

    When the generator raises, all that is open fails at once with that error; a later submit starts afresh.
    """

    def __init__(self, generator: BatchGenerator):
        self.generator = generator
        self._waiting: list[tuple[asyncio.Future[GenerationResult], GenerationJob]] = []
        self._open: set[asyncio.Future[GenerationResult]] = set()
        self._asked = 0  # since jobs were last given
        self._worker: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def submit(self, job: GenerationJob) -> GenerationResult:
        """Write one job. Raises what the generator raised."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a new asyncio.run: futures of a closed loop can never be answered
            self._loop, self._waiting, self._open, self._worker = loop, [], set(), None
        future: asyncio.Future[GenerationResult] = loop.create_future()
        self._waiting.append((future, job))
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while self._waiting:
                await asyncio.to_thread(self.generator.serve, self._take, self._answer)
                await asyncio.sleep(0)  # the answered may have asked again
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            futures = [*self._open, *(future for future, _ in self._waiting)]
            self._open, self._waiting = set(), []
            for future in futures:
                if not future.done():
                    future.cancel() if cancelled else future.set_exception(error)
            if cancelled:
                raise

    def _take(self, n: int) -> list[tuple[asyncio.Future[GenerationResult], GenerationJob]]:
        """On the worker thread. A list is only ever appended to by the loop's thread, and cut here."""
        live, self._asked = self.generator.max_batch - n, self._asked + 1
        few = len(self._waiting) <= live // GATHER
        if not n or not self._waiting or (few and live and self._asked < GATHER):
            return []
        self._asked = 0
        now = self._waiting[:n]
        del self._waiting[: len(now)]
        now = [(future, job) for future, job in now if not future.done()]
        self._open.update(future for future, _ in now)
        return now

    def _answer(self, future: asyncio.Future[GenerationResult], result: GenerationResult) -> None:
        def settle() -> None:
            if not future.done():  # else nobody waits any more
                future.set_result(result)

        self._open.discard(future)
        self._loop.call_soon_threadsafe(settle)
