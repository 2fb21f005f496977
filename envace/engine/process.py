"""A subprocess that is watched, and the leftovers of one that was not.

Flows in: a command, its environment and a work folder. Flows out: its exit status, or one error naming the
innermost cause and the log.
Invariant: only processes that carry this work folder in their environment (envaceWORK) or that a pid file of
ours names with the same start time are ever signalled.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil

from envace.errors import EnvironmentUnready
from envace.track.process import Identity, alive, here, identify

GRACE_S = 10.0  # between asking a process to end and ending it


def start(argv: list[str], env: dict[str, str], log: Path, pid_file: Path) -> subprocess.Popen:
    """Start in a process group of its own, output to `log`, and note pid and start time."""
    with log.open("ab") as f:
        f.write(f"\n=== {time.strftime('%F %T')} {' '.join(argv[:4])} ...\n".encode())
        f.flush()
        child = subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=f,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    pid_file.write_text(json.dumps(asdict(identify(child.pid))))
    return child


def trainer_of(pid_file: Path) -> Identity | None:
    """The identity a pid file holds; None without a readable one."""
    try:
        return Identity(**json.loads(pid_file.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def running(pid_file: Path) -> psutil.Process | None:
    """The process a pid file names, if it still is that process."""
    who = trainer_of(pid_file)
    return psutil.Process(who.pid) if who and here(who) and alive(who) else None


def refuse_second(pid_file: Path, what: str) -> None:
    """Raises EnvironmentUnready when the process of a pid file is alive and its parent still watches it."""
    process = running(pid_file)
    if process and process.ppid() not in (0, 1):
        raise EnvironmentUnready(
            f"{what} is already running (pid {process.pid}); wait for it or stop it first"
        )


def marked(work: Path) -> list[psutil.Process]:
    """Live processes started for a work folder, this one excepted.

    Most carry envaceWORK; some of Ray's helpers overwrite their environment with a title, but stay in the session
    that the trainer opened.
    """
    session = _session(work / "trainer.pid")
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("envaceWORK") == str(work) or os.getsid(process.pid) == session
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
            continue
    return found


def _session(pid_file: Path) -> int | None:
    """The session of the trainer a pid file names, None when the number may have passed to somebody else.

    A session's number is not given away while any process is in it; the boot time guards against a restart.
    """
    who = trainer_of(pid_file)
    if who is None or not here(who) or who.start < psutil.boot_time():
        return None
    try:
        return who.pid if abs(psutil.Process(who.pid).create_time() - who.start) < 1.0 else None
    except psutil.NoSuchProcess:
        return who.pid  # gone, and nobody else got its number


def reap(work: Path, grace_s: float = GRACE_S) -> int:
    """End every process of a work folder; how many there were."""
    first = marked(work)
    for process in first:
        _signal(process, signal.SIGTERM)
    psutil.wait_procs(first, timeout=grace_s if first else 0)
    for process in marked(work):
        _signal(process, signal.SIGKILL)
    return len(first)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass  # it went by itself, which is what was wanted


def watch(child: subprocess.Popen, tick: Callable[[], str | None], interval_s: float = 0.5) -> str | None:
    """Wait for the child, calling `tick` meanwhile; a sentence from it ends the watch early."""
    while child.poll() is None:
        complaint = tick()
        if complaint:
            return complaint
        time.sleep(interval_s)
    return tick()


ERROR_LINE = re.compile(
    r"^(?:\S*\([^)]*\)\s*)?(?:ray::\S+\s*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Unscored|Exit|Interrupt|Failed)(?:\[\w+\])?: .+)$"
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
    last = next((line for line in reversed(lines) if line), "")
    return last[:400] or "it printed nothing"
