"""How far a transfer is: a bar on a terminal, else a line every few seconds.

Flows in: bytes so far. Flows out: what people see.
Invariant: a transfer that moves nothing shows nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

EVERY_S = 5.0  # between two lines

Progress = Callable[[int, int, str], None]  # bytes that are here, bytes of all files, the file in transfer
Say = Callable[[str], None]


@contextmanager
def shown(say: Say) -> Iterator[Progress]:
    """A callback that shows what it is told."""
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
    last = time.monotonic()

    def progress(done: int, total: int, name: str) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_S:
            last = time.monotonic()
            share = 100 * done / total if total else 100.0
            say(f"{name}: {done / 1e6:.1f} of {total / 1e6:.1f} MB ({share:.0f} %)")

    yield progress
