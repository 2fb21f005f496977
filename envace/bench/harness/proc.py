"""Processes that never outlive the one that asked for them.

Flows in: a command, its environment, where its output goes. Flows out: a `Child` that is watched and ended.
Invariant: a child runs below `launch.py`, which ends it with all it started when told to, when the child itself
ends, and when this process is gone for whatever reason: `launch.py` holds the reading end of a pipe of ours, and
the end of that pipe is the signal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from envace.bench.harness.spec import Say
from envace.engine.process import innermost_error
from envace.errors import StageFailed

LAUNCH = Path(__file__).with_name("launch.py")
GRACE_S = 10.0  # between asking to end and ending


class Child:
    """A started command. `end()` is safe to call at any time and more than once."""

    def __init__(self, popen: subprocess.Popen[bytes], grace_s: float):
        self.popen, self._grace_s = popen, grace_s

    def code(self) -> int | None:
        """Exit status, None while it runs; 128 + n for a death by signal n."""
        code = self.popen.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(
        self, deadline: float, tick: Callable[[], bool] = lambda: False, step_s: float = 0.1
    ) -> int | None:
        """Exit status; None when the deadline (time.monotonic) passed or `tick` said stop."""
        while (code := self.code()) is None:
            if time.monotonic() >= deadline or tick():
                return None
            time.sleep(step_s)
        return code

    def end(self) -> None:
        """Ask all of it to end, then end it; returns when it is gone."""
        with suppress(OSError):
            self.popen.stdin.close()  # type: ignore[union-attr]
        try:
            self.popen.wait(self._grace_s + 5)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def start(
    argv: Sequence[str],
    *,
    env: dict[str, str],
    output: IO[bytes] | int,
    cwd: Path | None = None,
    wrap: Sequence[str] = (),
    relays: Sequence[tuple[int, str]] = (),
    isolated: bool = False,
    grace_s: float = GRACE_S,
) -> Child:
    """Start `argv` below the launcher. `wrap` stands before the launcher (unshare ...); `relays` are pairs of a
    port to listen on inside and the unix socket it leads to."""
    order = {"argv": list(argv), "relays": list(relays), "isolated": isolated, "grace_s": grace_s}
    popen = subprocess.Popen(
        [*wrap, sys.executable, "-I", "-S", str(LAUNCH)],
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    child = Child(popen, grace_s)
    try:
        assert popen.stdin is not None
        popen.stdin.write(json.dumps(order).encode() + b"\n")
        popen.stdin.flush()
    except BaseException:
        child.end()
        raise
    return child


def call(
    argv: Sequence[str], *, what: str, log: Path, deadline_s: float, say: Say, env: dict[str, str] | None = None,
    beat_s: float = 15.0, **more: Any,
) -> None:  # fmt: skip
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

    with log.open("ab") as out, start(argv, env=env or dict(os.environ), output=out, **more) as child:
        code = child.wait(began + deadline_s, tick)
    if code is None:
        raise StageFailed(f"{what} took longer than {deadline_s:g} s", log)
    if code:
        raise StageFailed(f"{what} failed: {innermost_error(log, since)}", log)
