"""How far a transfer or a reading is: a bar on a terminal, else a line every few seconds, with the time left.

Flows in: bytes or rows so far. Flows out: what people see.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tqdm import tqdm

EVERY_S = 5.0  # between two lines of a transfer
ROWS_S = 10.0  # between two lines of a reading

Say = Callable[[str], None]


def bar_class(say: Say) -> type[tqdm]:
    """A tqdm for transfers. Without a terminal its lines go through `say`, each whole, so that they survive a
    pipe."""

    class Lines(io.StringIO):
        def write(self, text: str) -> int:
            if line := text.strip():
                say(line)
            return len(text)

    class TransferBar(tqdm):
        monitor_interval = 0
        """No thread of tqdm's: started under tqdm's lock, it waits for ever where it collects an old bar."""

        def __init__(self, *args: object, **given: object):
            given |= {"disable": False, "leave": False, "delay": EVERY_S}
            if not sys.stderr.isatty():
                given |= {"file": Lines(), "mininterval": EVERY_S, "ncols": 80, "position": 0}
            super().__init__(*args, **given)

    return TransferBar


@dataclass
class RowMeter:
    """`meter(share)` once a row, with the share of the source that is read then; says now and then how far it
    is."""

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
        read = f"{self.rows:,} rows read ({100 * share:.0f} % of the source)"
        return f"{read}, {self.rows / seconds:,.0f} a second{left}"


def time_left(seconds: float) -> str:
    """`28 min left`"""
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word} left"
    return f"{seconds:.0f} s left"
