"""Commands that are started, watched and ended.

Flows in: a command, its environment, where its output goes. Flows out: a `Child`, or one error that names the
innermost cause and the log.
Invariant: every child leads a session of its own, and `end` leaves nothing of it. A guarded one runs below
`guard.py`, which ends it with all it started also when this process is gone for whatever reason.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from envace.errors import StageFailed
from envace.io import processes

GUARD = Path(__file__).with_name("guard.py")
GRACE_S = 10.0  # between asking to end and ending


@dataclass(slots=True)
class Child:
    """A started command. `end()` is safe to call at any time and more than once."""

    popen: subprocess.Popen[bytes]
    grace_s: float = GRACE_S
    guarded: bool = False

    def code(self) -> int | None:
        """Exit status, None while it runs; 128 + n for a death by signal n."""
        code = self.popen.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(
        self, deadline: float = math.inf, tick: Callable[[], bool] = lambda: False, step_s: float = 0.1
    ) -> int | None:
        """Exit status; None when the deadline (time.monotonic) passed or `tick` said stop."""
        while (code := self.code()) is None:
            if time.monotonic() >= deadline or tick():
                return None
            time.sleep(step_s)
        return code

    def end(self) -> None:
        """Ask all of it to end, then end it; returns when it is gone."""
        if self.guarded and self.popen.stdin:
            with suppress(OSError):
                self.popen.stdin.close()  # which the guard waits for
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(self.grace_s + 5)
                return
        processes.end(lambda: processes.family(self.popen.pid), self.grace_s)
        self.popen.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end()


def start(
    argv: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | int, cwd: Path | None = None
) -> Child:
    """Start a command in a session of its own."""
    return Child(_popen(argv, env, output, cwd, subprocess.DEVNULL))


def start_guarded(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    output: IO[bytes] | int,
    cwd: Path | None = None,
    wrap: Sequence[str] = (),
    relays: Sequence[tuple[int, str]] = (),
    grace_s: float = GRACE_S,
) -> Child:
    """Start a command below the guard.

    `wrap` stands before the guard (bwrap ...); `relays` are pairs of a port to listen on inside and the
    unix socket it leads to."""
    order = {"argv": list(argv), "relays": list(relays), "grace_s": grace_s}
    popen = _popen([*wrap, sys.executable, "-I", str(GUARD)], env, output, cwd, subprocess.PIPE)
    child = Child(popen, grace_s, guarded=True)
    try:
        assert popen.stdin is not None
        popen.stdin.write(json.dumps(order).encode() + b"\n")
        popen.stdin.flush()
    except BaseException:
        child.end()
        raise
    return child


def _popen(
    argv: Sequence[str], env: Mapping[str, str], output: IO[bytes] | int, cwd: Path | None, stdin: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=stdin, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


def call(
    argv: Sequence[str],
    *,
    what: str,
    log: Path,
    deadline_s: float,
    say: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    wrap: Sequence[str] = (),
    beat_s: float = 15.0,
) -> None:
    """Run a command to its end, its output to `log`, a line of progress now and then.

    Raises StageFailed, naming the first error the log holds, for a bad exit or a passed deadline.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    since, began, told = log.stat().st_size if log.exists() else 0, time.monotonic(), time.monotonic()

    def tick() -> bool:
        nonlocal told
        if time.monotonic() - told >= beat_s:
            told = time.monotonic()
            say(f"{what}: {told - began:.0f} s so far")
        return False

    env = env or dict(os.environ)
    with (
        log.open("ab") as output,
        start_guarded(argv, env=env, output=output, cwd=cwd, wrap=wrap) as child,
    ):
        code = child.wait(began + deadline_s, tick)
    if code is None:
        raise StageFailed(f"{what} took longer than {deadline_s:g} s", log)
    if code:
        raise StageFailed(f"{what} failed: {innermost_error(log, since)}", log)


ERROR_LINE = re.compile(
    r"^(?:\S*\([^)]*\)\s*)?(?:ray::\S+\s*)?"  # (TaskRunner pid=1) ray::f()
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Unscored|Exit|Interrupt|Failed)(?:\[\w+\])?: .+)$"
)


def innermost_error(log: Path, since: int = 0) -> str:
    """The first exception line of a log after a byte offset: of a chain of causes the one that began it."""
    if not log.exists():
        return "it left no log"
    with log.open("rb") as f:
        f.seek(since)
        lines = f.read().decode("utf-8", "replace").splitlines()
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in lines]
    for line in lines:
        match = ERROR_LINE.match(line)
        if match and "RayTaskError" not in match[1]:
            return match[1][:400]
    return next((line for line in reversed(lines) if line), "it printed nothing")[:400]
