"""The run: rows through filter, label and repair, so many at a time, until nothing is open.

Flows in: samples, their course, a client. Flows out: records in the journal, and how the run ended.
Invariant: a reply that came back is in the journal before the row goes on; a run that is told to stop makes no new
call and waits for those under way. Each call is made once a run, one whose reply cannot be read twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from envace.data.annotate.client import Answer, Client, Stopped
from envace.data.annotate.course import Ask, Course, Outcome, Result
from envace.data.annotate.dialogue import Sample
from envace.data.annotate.journal import Record
from envace.data.annotate.options import Options
from envace.data.annotate.progress import Progress
from envace.errors import EnvironmentUnready, UserError

TRIES = 2  # calls a run, where replies come that cannot be read


@dataclass
class Run:
    """`await Run(course, client, stop, progress).through(samples)`"""

    course: Course
    client: Client
    stop: asyncio.Event
    progress: Progress
    error: UserError | None = None  # what ended the run early and is the user's to mend
    over_budget: bool = False
    interrupted: bool = False
    spent_usd: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def through(self, samples: Iterator[Sample]) -> None:
        """Every sample as far as it goes. What the user must mend is left in `error`; a bug raises."""
        self.tasks = [
            asyncio.create_task(self._worker(samples)) for _ in range(self.course.options.concurrency)
        ]
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

    async def _worker(self, samples: Iterator[Sample]) -> None:
        try:
            while not self.stop.is_set() and (sample := next(samples, None)) is not None:
                await self._row(sample)
        except Stopped:
            pass  # its call was never sent; the next run makes it
        except UserError as e:
            self.error = self.error or e
            self.stop.set()

    async def _row(self, sample: Sample) -> None:
        tries: Counter[str] = Counter()
        while True:
            at = self.course.at(sample)
            ask = self._next(at, tries)
            if ask is None or self.stop.is_set():
                break
            tries[ask.key] += 1
            answer = await self.client.ask(ask.question())
            self._keep(sample, ask, answer)
        outcome = at.outcome if isinstance(at, Result) else Outcome.UNDECIDED
        self.progress.row(outcome.value, bool(tries))

    def _next(self, at: Ask | Result, tries: Counter[str]) -> Ask | None:
        """What to ask now; None where the row is through for this run."""
        if isinstance(at, Result):
            return (
                at.again
                if at.again and self.course.options.retry_failed and not tries[at.again.key]
                else None
            )
        most = TRIES if at.why.startswith("reply_") else 1
        return at if tries[at.key] < most else None

    def _keep(self, sample: Sample, ask: Ask, answer: Answer) -> None:
        options = self.course.options
        record = record_of(sample, ask, answer, options)
        if self.client.answered or not answer.fault.startswith("refused"):
            self.course.journal.add(
                record
            )  # else the server may refuse everything, which says nothing of the row
        usd = record["usd"] if options.prices and answer.completion else 0.0
        self.progress.call(answer.requests, (record["read"] or 0) + (record["written"] or 0), usd)
        self._budget(record, options)

    def _budget(self, record: Record, options: Options) -> None:
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


def record_of(sample: Sample, ask: Ask, answer: Answer, options: Options) -> Record:
    """A finished call as the journal keeps it."""
    done, prices = answer.completion, options.prices
    read, written = (done.read, done.written) if done else (None, None)
    usd = prices.usd(read, written) if prices and read is not None and written is not None else None
    return {
        "key": ask.key, "row": sample.key, "call": ask.call, "model": options.model, "prompt": ask.prompt,
        "reply": done.text if done else None, "finish": done.finish if done else "", "fault": answer.fault,
        "read": read, "written": written, "usd": usd,
        "requests": answer.requests, "seconds": round(answer.seconds, 3), "structured": answer.structured,
    }  # fmt: skip
