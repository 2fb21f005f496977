"""Chunks of work over processes, results in order.

Invariant: a bounded number of chunks is in flight, however fast they are read; the results do not depend on
the number of processes. A process that dies is a StageFailed. No process outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from envace.errors import StageFailed
from envace.worlds import registry as worlds

T = TypeVar("T")
R = TypeVar("R")

SPARE = 4  # chunks in flight beyond one a process
ALONE = 8  # chunks done before processes are worth starting


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one shorter."""
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def ordered(
    work: Callable[[T], R], parts: Iterable[T], workers: int, own_worlds: Mapping[str, str] | None = None
) -> Iterator[R]:
    """`work(part)` for every part, in order, by `workers` processes; 1 works in this one.

    Small inputs never start a process. `work` must be picklable; `own_worlds` are loaded in every process
    first. Raises StageFailed when a process dies, and what `work` raises."""
    parts = iter(parts)
    yield from map(work, parts if workers == 1 else islice(parts, ALONE))
    if workers == 1 or (first := next(parts, None)) is None:
        return
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _begin, (dict(own_worlds or {}),)
    )
    flying: deque[Future[R]] = deque()
    try:
        for part in chain([first], parts):
            if len(flying) >= workers + SPARE:
                yield flying.popleft().result()
            flying.append(pool.submit(work, part))
        while flying:
            yield flying.popleft().result()
    except BrokenProcessPool as e:
        raise StageFailed(
            "a staging process died, often for lack of memory: lower data.workers and run stage_data again"
        ) from e
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin(own_worlds: dict[str, str]) -> None:
    """In a worker: Ctrl-C is the parent's, and when the parent ends, however it does, so does this
    process."""

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    worlds.load(own_worlds)
