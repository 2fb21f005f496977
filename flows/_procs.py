"""Whose processes are whose, so that a killed pipeline's leftovers can be ended and nobody else's.

Flows in: this process (a pipeline or a stage). Flows out: `.state/owners/<token>.json` naming it, and a token in
`envaceOWNERS`, which every descendant inherits in its environment.
Invariant: a process is ended only when it carries, in its own environment, the token of an owner that is proven
dead (pid and start time), or of the caller itself. Nothing is matched by name.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil

from envace.track.process import Identity, alive, here, identify

VARIABLE = "envaceOWNERS"
GRACE_S = 5.0


@contextmanager
def owner(state: Path, kind: str, what: str) -> Iterator[str]:
    """Register this process for the duration; yields its token. Leftovers of dead owners are ended first."""
    reap_dead_owners(state)
    token, before = uuid.uuid4().hex, os.environ.get(VARIABLE, "")
    card = state / "owners" / f"{token}.json"
    card.parent.mkdir(parents=True, exist_ok=True)
    card.write_text(json.dumps({"kind": kind, "what": what, **asdict(identify())}))
    os.environ[VARIABLE] = f"{before}:{token}".strip(":")
    try:
        yield token
    except BaseException as e:
        if not isinstance(e, Exception):  # interrupted: the process may leave without its exit handlers
            end_descendants(token)
        raise
    finally:
        os.environ[VARIABLE] = before
        card.unlink(missing_ok=True)


def retire(state: Path, token: str) -> None:
    """End what an owner started and take its card away, from any thread of it."""
    end_descendants(token, grace_s=2.0)
    (state / "owners" / f"{token}.json").unlink(missing_ok=True)


def reap_dead_owners(state: Path) -> list[str]:
    """End what dead owners left running; returns a line for each owner that left something."""
    notes = []
    for card in sorted((state / "owners").glob("*.json")):
        try:
            said = json.loads(card.read_text())
            who = Identity(host=said["host"], pid=said["pid"], start=said["start"])
        except (ValueError, KeyError, FileNotFoundError):
            continue  # being written, or removed, by its owner
        if not here(who) or alive(who):
            continue
        ended = end_descendants(card.stem)
        card.unlink(missing_ok=True)
        if ended:
            notes.append(
                f"ended {ended} process(es) left by a killed {said['kind']} ({said['what']}, pid {who.pid})"
            )
    return notes


def carriers(token: str) -> list[psutil.Process]:
    """Processes whose environment holds the token, this one excepted."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if token in process.environ().get(VARIABLE, "").split(":"):
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
            continue  # someone else's, or gone
    return found


def end_descendants(token: str, grace_s: float = GRACE_S) -> int:
    """SIGTERM, then SIGKILL, to every carrier of a token; returns how many there were."""
    seen: set[int] = set()
    for send in (signal.SIGTERM, signal.SIGKILL):
        processes = carriers(token)
        seen |= {p.pid for p in processes}
        for process in processes:
            try:
                process.send_signal(send)  # psutil checks that the pid was not reused
            except psutil.NoSuchProcess:
                continue
        wait_gone(processes, grace_s)
    return len(seen)


def wait_gone(processes: list[psutil.Process], timeout_s: float) -> bool:
    """Wait until all have ended. Unlike psutil's own wait it leaves the exit status to the parent."""
    deadline = time.time() + timeout_s
    while time.time() < deadline:
        if not any(_lives(p) for p in processes):
            return True
        time.sleep(0.1)
    return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_group(pid: int, grace_s: float = GRACE_S) -> None:
    """End a process group this process started, by its leader's pid; all members get time to unwind."""
    members = group_of(pid)
    for send in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, send)
        except ProcessLookupError:
            return
        wait_gone(members, grace_s)


def group_of(pid: int) -> list[psutil.Process]:
    """Live members of a process group."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid:
                found.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    return found
