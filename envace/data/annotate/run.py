"""The run: rows through filter, label and repair, so many at a time, until nothing is open.

A reply that came back is in the journal before the row goes on; a run that is told to stop makes no new call
and waits for those under way. Each call is made once a run, one whose reply cannot be read twice."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from envace.data.annotate.call_plan import Ask, CallPlan, RowOutcome
from envace.data.annotate.client import AnnotateClient, Stopped
from envace.data.annotate.dialogue import RawSample
from envace.data.progress import time_left
from envace.errors import EnvironmentUnready, UserError

TRIES = 2
"""Calls a run, where replies come that cannot be read."""
TERMINAL_S, FILE_S = 1.0, 30.0
"""Between two lines of progress."""


@dataclass
class AnnotateRun:
    """`await AnnotateRun(plan, client, stop, n_rows).through(samples)`; counts what this run did."""

    plan: CallPlan
    client: AnnotateClient
    stop: asyncio.Event
    total: int
    """Rows to go through."""
    error: UserError | None = None
    """What ended the run early and is the user's to mend."""
    over_budget: bool = False
    interrupted: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    worked: int = 0
    """Rows that took calls in this run, beside those that were settled before."""
    calls: int = 0
    retries: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    """None once a call's cost is unknown."""
    started: float = field(default_factory=time.monotonic)

    async def through(self, samples: Iterable[RawSample]) -> None:
        """Every sample as far as it goes. What the user must mend is left in `error`; a bug raises."""
        left, workers = iter(samples), range(self.plan.options.concurrency)
        self.tasks = [asyncio.create_task(self._worker(left)) for _ in workers]
        try:
            await asyncio.wait(self.tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in self.tasks:
                task.cancel()
            ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        for end in ended:
            if isinstance(end, Exception):
                raise end

    def interrupt(self) -> None:
        """Make no new calls; at the second time, drop those under way."""
        if self.interrupted:
            for task in self.tasks:
                task.cancel()
            return
        self.interrupted = True
        self.stop.set()
        words = "\nstopping: no new calls; waiting for those under way (Ctrl-C again drops them)"
        print(words, file=sys.stderr, flush=True)

    async def _worker(self, samples: Iterator[RawSample]) -> None:
        """Takes the next row and makes its open calls, until none is left."""
        try:
            while not self.stop.is_set() and (sample := next(samples, None)) is not None:
                tries = Counter[str]()
                while True:
                    at = self.plan.state(sample)
                    ask = self.plan.next_ask(at)
                    unread = at.outcome is RowOutcome.UNDECIDED and at.reason.startswith("reply_")
                    spent = ask is None or tries[ask.key] >= (TRIES if unread else 1)
                    if spent or self.stop.is_set():
                        break
                    tries[ask.key] += 1
                    await self._call(sample, ask)
                self.outcomes[at.outcome] += 1
                self.worked += bool(tries)
        except Stopped:
            pass  # its call was never sent; the next run makes it
        except UserError as e:
            self.error = self.error or e
            self.stop.set()

    async def _call(self, sample: RawSample, ask: Ask) -> None:
        """Make a call, record it, and hold it against the budget."""
        o = self.plan.options
        about = {"key": ask.key, "row": sample.key, "call": ask.call, "model": o.model, "prompt": ask.prompt}
        found = await self.client.ask(self.plan.question(sample, ask))
        usd = o.usd(found["read"], found["written"])
        if self.client.answered or not found["fault"].startswith("refused"):
            # else the server may refuse all, which says nothing of the row
            self.plan.journal.add({**about, **found, "usd": usd})
        self.calls, self.retries = self.calls + 1, self.retries + found["requests"] - 1
        self.tokens += (found["read"] or 0) + (found["written"] or 0)
        if found["reply"] is None or o.price_in is None:
            return
        self.usd = None if usd is None or self.usd is None else self.usd + usd
        if self.usd is None and math.isfinite(o.budget):
            raise EnvironmentUnready(
                f"{o.base_url} states no token counts, so --budget cannot be kept; leave it out"
            )
        if self.usd is not None and self.usd >= o.budget:
            self.over_budget = True
            self.stop.set()

    def line(self) -> str:
        """`120 of 1000 rows (30 annotated), 0.52 rows/s, 410 calls, 1,204 tokens, 0.84 USD, 28 min left`:
        numbers and fixed words only, nothing a model or server wrote."""
        done, seconds = self.outcomes.total(), max(time.monotonic() - self.started, 1e-6)
        rate = self.worked / seconds
        kinds = ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.outcomes.items()))
        parts = [f"{done} of {self.total} rows" + (f" ({kinds})" if kinds else "")]
        parts += [f"{rate:.2f} rows/s", f"{self.calls} calls", f"{self.tokens:,} tokens"]
        parts += [f"{self.retries} retries"] if self.retries else []
        parts += [f"{self.usd:.2f} USD"] if self.usd else []
        parts += [time_left((self.total - done) / rate)] if rate and done < self.total else []
        return ", ".join(parts)

    async def show(self) -> None:
        """The line, again and again until cancelled: in place on a terminal, else as lines of a file."""
        every, start, end = (TERMINAL_S, "\r\033[K", "") if sys.stderr.isatty() else (FILE_S, "", "\n")
        try:
            while True:
                await asyncio.sleep(every)
                print(start + self.line(), end=end, file=sys.stderr, flush=True)
        finally:
            print(start + self.line(), file=sys.stderr, flush=True)


async def annotate_rows(plan: CallPlan, samples: list[RawSample]) -> AnnotateRun:
    """Make the open calls, saying how far they are. Ctrl-C waits for calls under way, a second one drops
    them."""
    stop = asyncio.Event()
    async with AnnotateClient(plan.options, stop) as client:
        run = AnnotateRun(plan, client, stop, len(samples))
        for sign in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sign, run.interrupt)
        shown = asyncio.create_task(run.show())
        try:
            await run.through(samples)
        finally:
            shown.cancel()
            with suppress(asyncio.CancelledError):
                await shown
    return run
