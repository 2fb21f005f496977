"""The run: rows through filter, label and repair, so many at a time, until nothing is open.

A reply that came back is in the journal before the row goes on; a run that is told to stop makes no new call
and waits for those under way. Each call is made once a run, one whose reply cannot be read twice."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

from envace.data.annotate.client import AnnotateClient, CallResult, Stopped
from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.journal import CallRecord
from envace.data.annotate.next_call import Ask, Course, RowOutcome, RowResult
from envace.data.progress import time_left
from envace.errors import EnvironmentUnready, UserError

TRIES = 2
"""Calls a run, where replies come that cannot be read."""
TERMINAL_S, FILE_S = 1.0, 30.0
"""Between two lines of progress."""


@dataclass
class CallMeter:
    """`CallMeter(total=1000)`; counts what this run did, beside rows that were settled before.

    A line holds numbers and fixed words only, nothing a model or server wrote.
    """

    total: int
    out: TextIO = field(default_factory=lambda: sys.stderr)
    outcomes: Counter[str] = field(default_factory=Counter)
    worked: int = 0
    """Rows that took calls in this run."""
    calls: int = 0
    retries: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    """None once a call's cost is unknown."""
    started: float = field(default_factory=time.monotonic)
    _shown: float = field(default_factory=time.monotonic)

    def call(self, requests: int, tokens: int, usd: float | None) -> None:
        """A call came back."""
        self.calls, self.retries, self.tokens = (
            self.calls + 1,
            self.retries + requests - 1,
            self.tokens + tokens,
        )
        self.usd = None if usd is None or self.usd is None else self.usd + usd

    def row(self, outcome: str, worked: bool) -> None:
        """A row is through."""
        self.outcomes[outcome] += 1
        self.worked += worked

    def line(self) -> str:
        """`120 of 1000 rows (30 annotated), 0.52 rows/s, 410 calls, 1,204,113 tokens, 0.84 USD, 28 min
        left`"""
        done, seconds = sum(self.outcomes.values()), max(time.monotonic() - self.started, 1e-6)
        rate = self.worked / seconds
        kinds = ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.outcomes.items()))
        parts = [f"{done} of {self.total} rows" + (f" ({kinds})" if kinds else "")]
        parts += [f"{rate:.2f} rows/s", f"{self.calls} calls", f"{self.tokens:,} tokens"]
        parts += [f"{self.retries} retries"] if self.retries else []
        parts += [f"{self.usd:.2f} USD"] if self.usd else []
        parts += [time_left((self.total - done) / rate)] if rate and done < self.total else []
        return ", ".join(parts)

    def show(self, last: bool = False) -> None:
        """Print the line where it is time; always at the last."""
        terminal, now = self.out.isatty(), time.monotonic()
        if last or now - self._shown >= (TERMINAL_S if terminal else FILE_S):
            self._shown = now
            text = f"\r\033[K{self.line()}" if terminal else self.line()
            print(text, end="\n" if last or not terminal else "", file=self.out, flush=True)

    async def keep_showing(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TERMINAL_S)
            self.show()


@dataclass
class AnnotateRun:
    """`await AnnotateRun(course, client, stop, meter).through(samples)`"""

    course: Course
    client: AnnotateClient
    stop: asyncio.Event
    meter: CallMeter
    error: UserError | None = None
    """What ended the run early and is the user's to mend."""
    over_budget: bool = False
    interrupted: bool = False
    spent_usd: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def through(self, samples: Iterator[RawSample]) -> None:
        """Every sample as far as it goes. What the user must mend is left in `error`; a bug raises."""
        workers = range(self.course.options.concurrency)
        self.tasks = [asyncio.create_task(self._worker(samples)) for _ in workers]
        try:
            await asyncio.wait(self.tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.abandon()
            ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        for end in ended:
            if isinstance(end, Exception):
                raise end

    def abandon(self) -> None:
        """Drop the calls under way."""
        for task in self.tasks:
            task.cancel()

    async def _worker(self, samples: Iterator[RawSample]) -> None:
        try:
            while not self.stop.is_set() and (sample := next(samples, None)) is not None:
                await self._row(sample)
        except Stopped:
            pass  # its call was never sent; the next run makes it
        except UserError as e:
            self.error = self.error or e
            self.stop.set()

    async def _row(self, sample: RawSample) -> None:
        tries: Counter[str] = Counter()
        while True:
            at = self.course.at(sample)
            ask = self._next(at, tries)
            if ask is None or self.stop.is_set():
                break
            tries[ask.key] += 1
            self._keep(sample, ask, await self.client.ask(ask.question()))
        outcome = at.outcome if isinstance(at, RowResult) else RowOutcome.UNDECIDED
        self.meter.row(outcome.value, bool(tries))

    def _next(self, at: Ask | RowResult, tries: Counter[str]) -> Ask | None:
        """What to ask now; None where the row is through for this run."""
        if isinstance(at, RowResult):
            fresh = self.course.options.retry_failed and at.again and not tries[at.again.key]
            return at.again if fresh else None
        most = TRIES if at.why.startswith("reply_") else 1
        return at if tries[at.key] < most else None

    def _keep(self, sample: RawSample, ask: Ask, result: CallResult) -> None:
        """Record the call, show it, and hold it against the budget."""
        record, options = self._record(sample, ask, result), self.course.options
        if self.client.answered or not result.fault.startswith("refused"):
            self.course.journal.add(record)  # else the server may refuse all, which says nothing of the row
        usd = record["usd"] if options.prices and result.reply else 0.0
        self.meter.call(result.requests, (record["read"] or 0) + (record["written"] or 0), usd)
        if options.budget_usd == float("inf") or record["reply"] is None:
            return
        if record["usd"] is None:
            raise EnvironmentUnready(
                f"{options.base_url} states no token counts, so --budget cannot be kept; leave it out"
            )
        self.spent_usd += record["usd"]
        if self.spent_usd >= options.budget_usd:
            self.over_budget = True
            self.stop.set()

    def _record(self, sample: RawSample, ask: Ask, result: CallResult) -> CallRecord:
        """A finished call as the journal keeps it."""
        done, options = result.reply, self.course.options
        read, written = (done.tokens_in, done.tokens_out) if done else (None, None)
        known = options.prices and read is not None and written is not None
        return {
            "key": ask.key,
            "row": sample.key,
            "call": ask.call,
            "model": options.model,
            "prompt": ask.prompt,
            "reply": done.text if done else None,
            "finish": done.finish if done else "",
            "fault": result.fault,
            "read": read,
            "written": written,
            "usd": options.prices.usd(read, written) if known else None,
            "requests": result.requests,
            "seconds": round(result.seconds, 3),
            "structured": result.structured,
        }
