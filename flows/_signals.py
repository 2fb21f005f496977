"""Ctrl-C and SIGTERM, in the one place that knows of them.

Flows in: signals of this process, also those whose handler is Prefect's. Flows out: a KeyboardInterrupt that
unwinds the block, and whatever must still happen when unwinding takes too long.
Invariant: after a signal the process is gone within the time allowed, with the end state of its runs written.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # exit status
_allowed_s = {"unwinding": 8.0}
_arrived = threading.Event()
_listening = threading.Event()
_finishers: list[Callable[[], None]] = []


def interrupted() -> bool:
    """A signal arrived since the process began; it may have been seen by Prefect alone, a moment ago."""
    return _arrived.wait(0.1)


def allow(seconds: float) -> None:
    """How long unwinding may take; then the process ends itself."""
    _allowed_s["unwinding"] = seconds


def note_signal() -> None:
    """Remember that a signal arrived, whoever handles it, and bound the time unwinding may take.

    Ctrl-C also reaches Prefect's temporary server; its client then retries for minutes before it gives up.
    """
    if not _arrived.is_set():
        _arrived.set()
        threading.Thread(target=_leave_later, daemon=True).start()


def _leave_later() -> None:
    time.sleep(_allowed_s["unwinding"])
    try:
        for finish in reversed(_finishers):
            finish()
    finally:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)


@contextmanager
def finishing(finish: Callable[[], None]) -> Iterator[None]:
    """Have `finish` called if this block is interrupted and does not unwind in time."""
    _finishers.append(finish)
    try:
        yield
    finally:
        _finishers.remove(finish)


@contextmanager
def interruptible(first: Callable[[], None] | None = None) -> Iterator[None]:
    """SIGTERM unwinds this block like Ctrl-C, so that runs get their end state and children are ended.

    first: called before anything else; then the handler that was in place has its turn (Prefect's reports the
    flow run as cancelled). Under a Prefect worker SIGTERM then stays with Prefect, whose handler raises:
    replaced, it could not tell the wish to cancel from a crash.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _listening.is_set():
        _listen()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if first and os.environ.get("PREFECT__FLOW_RUN_ID"):
        numbers.remove(signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def unwind(number: int, frame: FrameType | None) -> None:
        note_signal()
        if first:
            first()
            if callable(there := before[signal.Signals(number)]):
                there(number, frame)
        raise KeyboardInterrupt("interrupted by a signal")

    for number in numbers:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _listen() -> None:
    """See every signal of this process on a thread, also those Prefect's handlers take."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def read() -> None:
        while numbers := os.read(reader, 16):
            if set(numbers) & {signal.SIGTERM, signal.SIGINT}:
                return note_signal()

    threading.Thread(target=read, daemon=True).start()
    _listening.set()
