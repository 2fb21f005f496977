"""How far a transfer or a reading is: a bar on a terminal, else a line every few seconds, with the time left.

Flows in: bytes or rows so far. Flows out: what people see.
Invariant: what moves nothing shows nothing; a line without a terminal is whole, so that it survives a pipe.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm

EVERY_S = 5.0  # between two lines of a transfer
ROWS_S = 10.0  # between two lines of a reading

Progress = Callable[[int, int, str], None]  # bytes that are here, bytes of all files, the file in transfer
Say = Callable[[str], None]


@contextmanager
def shown(say: Say) -> Iterator[Progress]:
    """A callback that shows what it is told of a transfer."""
    with _bar() if sys.stderr.isatty() else _lines(say) as progress:
        yield progress


@contextmanager
def _bar() -> Iterator[Progress]:
    bar = None

    def progress(done: int, total: int, name: str) -> None:
        nonlocal bar
        if bar is None:  # bars that libraries draw are off; this one is asked for
            bar = tqdm(unit="B", unit_scale=True, dynamic_ncols=True, initial=done, disable=False)
        bar.total = total
        bar.set_description_str(name, refresh=False)
        bar.update(done - bar.n)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def _lines(say: Say) -> Iterator[Progress]:
    began = last = time.monotonic()
    first: int | None = None  # bytes that were here before

    def progress(done: int, total: int, name: str) -> None:
        nonlocal first, last
        now = time.monotonic()
        first = done if first is None else first
        if now - last >= EVERY_S:
            last = now
            rate = (done - first) / max(now - began, 1e-6)
            share = 100 * done / total if total else 100.0
            more = f", {rate / 1e6:.1f} MB/s, {time_left((total - done) / rate)}" if rate > 0 else ""
            say(f"{name}: {done / 1e6:.1f} of {total / 1e6:.1f} MB ({share:.0f} %){more}")

    yield progress


@dataclass
class RowMeter:
    """`meter(share)` once a row, with the share of the source that is read then; says now and then how far it is."""

    say: Say
    rows: int = 0
    began: float = field(default_factory=lambda: time.monotonic())
    _said: float = field(default_factory=lambda: time.monotonic())

    def __call__(self, share: float) -> None:
        self.rows += 1
        now = time.monotonic()
        if now - self._said >= ROWS_S:
            self._said = now
            self.say(self.line(share, now - self.began))

    def line(self, share: float, seconds: float) -> str:
        """`12,000 rows read (31 % of the source), 900 a second, 4 min left`"""
        left = f", {time_left(seconds / share - seconds)}" if share > 0 else ""
        return f"{self.rows:,} rows read ({100 * share:.0f} % of the source), {self.rows / seconds:,.0f} a second{left}"


def time_left(seconds: float) -> str:
    """`28 min left`"""
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word} left"
    return f"{seconds:.0f} s left"
