"""One line on how far a run is, what it cost, and how long it may still take.

Flows in: finished calls and rows. Flows out: the line, rewritten on a terminal, else printed now and then.
Invariant: never slows the run; a line holds numbers and fixed words only, nothing a model or server wrote.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TextIO

from envace.data.progress import time_left

TERMINAL_S, FILE_S = 1.0, 30.0  # between two lines


@dataclass
class Progress:
    """`Progress(total=1000)`; counts what this run did, beside rows that were settled before."""

    total: int
    out: TextIO = field(default_factory=lambda: sys.stderr)
    outcomes: Counter[str] = field(default_factory=Counter)
    worked: int = 0  # rows that took calls in this run
    calls: int = 0
    retries: int = 0
    tokens: int = 0
    usd: float | None = 0.0  # None once a call's cost is unknown
    started: float = field(default_factory=time.monotonic)
    _shown: float = 0.0

    def call(self, requests: int, tokens: int, usd: float | None) -> None:
        """A call came back."""
        self.calls += 1
        self.retries += requests - 1
        self.tokens += tokens
        self.usd = None if usd is None or self.usd is None else self.usd + usd

    def row(self, outcome: str, worked: bool) -> None:
        """A row is through."""
        self.outcomes[outcome] += 1
        self.worked += worked

    def line(self) -> str:
        """`120 of 1000 rows (30 annotated, 90 rejected), 0.52 rows/s, 410 calls, 1,204,113 tokens, 0.84 USD, 28 min left`"""
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
        terminal = self.out.isatty()
        now = time.monotonic()
        if last or now - self._shown >= (TERMINAL_S if terminal else FILE_S):
            self._shown = now
            print(
                f"\r\033[K{self.line()}" if terminal else self.line(),
                end="\n" if last or not terminal else "",
                file=self.out,
                flush=True,
            )

    async def keep_showing(self) -> None:
        """Until cancelled."""
        self._shown = time.monotonic()
        while True:
            await asyncio.sleep(TERMINAL_S)
            self.show()
