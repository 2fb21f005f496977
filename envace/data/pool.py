"""Chunks of work over processes, results in order.

Flows in: chunks, one at a time, and a function of each. Flows out: the results, in the order of the chunks.
Invariant: a bounded number of chunks is in flight, however fast they are read; the results do not depend on the
number of processes. A process that dies is a StageFailed. No process outlives its parent or runs the parent's script.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, TypeVar

from envace.errors import StageFailed

T = TypeVar("T")
R = TypeVar("R")

SPARE = 4  # chunks in flight beyond one a process
ALONE = 8  # chunks done before processes are worth starting
RARE = 100_000  # containers made between two looks for reference cycles


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one shorter."""
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def ordered(
    work: Callable[[T], R], parts: Iterable[T], workers: int, worlds: Mapping[str, str] | None = None
) -> Iterator[R]:
    """`work(part)` for every part, in order, by `workers` processes; 1 works in this one.

    Small inputs never start a process. `work` must be picklable; `worlds` are loaded in every process first.
    Raises StageFailed when a process dies, and what `work` raises.
    """
    parts = iter(parts)
    yield from map(work, parts if workers == 1 else islice(parts, ALONE))
    if workers > 1 and (first := next(parts, None)) is not None:
        yield from _spread(work, chain([first], parts), workers, dict(worlds or {}))


def _spread(work: Callable[[T], R], parts: Iterable[T], workers: int, worlds: dict[str, str]) -> Iterator[R]:
    """A thread a process: it waits while the process works."""
    processes = [Process(work, worlds) for _ in range(workers)]
    idle: SimpleQueue[Process] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def do(part: T) -> R:
        process = idle.get()
        try:
            return process.do(part)
        finally:
            idle.put(process)

    flying: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, "staging") as pool:
        try:
            for part in parts:
                if len(flying) >= workers + SPARE:
                    yield flying.popleft().result()
                flying.append(pool.submit(do, part))
            while flying:
                yield flying.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.end()


class Process:
    """One worker (`envace.data.worker`). It talks through its standard input and output, one pickle a message."""

    def __init__(self, work: Callable[[Any], Any], worlds: dict[str, str]):
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "envace.data.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        self._first: tuple[Any, ...] | None = (work, worlds)

    def do(self, part: Any) -> Any:
        """The result for a part. Raises StageFailed when the process dies, and what the work raised."""
        child = self._child
        try:
            for message in (self._first, part) if self._first else (part,):
                pickle.dump(message, child.stdin, pickle.HIGHEST_PROTOCOL)
            self._first = None
            child.stdin.flush()
            good, result = pickle.load(child.stdout)
        except (BrokenPipeError, EOFError, ValueError, pickle.UnpicklingError) as e:
            raise StageFailed(
                f"a staging process died ({_ending(child)}), often for lack of memory: "
                "lower data.workers and run stage_data again"
            ) from e
        if not good:
            raise result
        return result

    def end(self) -> None:
        """Stop the process, at work or not."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not sent is of no use any more


def _ending(child: subprocess.Popen[bytes]) -> str:
    try:
        code = child.wait(5)
    except subprocess.TimeoutExpired:
        return "it stopped answering"
    return f"signal {-code}" if code < 0 else f"exit status {code}"


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for reference cycles less often: rows have none, and looking costs a quarter of the time."""
    before = gc.get_threshold()
    gc.set_threshold(RARE, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
