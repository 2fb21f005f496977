"""Whose processes are whose, and how they are ended.

Flows in: pids, sessions, tokens in the environment of processes. Flows out: identities that can be written
down and checked later, and processes that are gone. Invariant: only processes are signalled that this process
started, or that carry a token of ours whose owner is proven dead; nothing is matched by name. A pid alone is
never believed: it may have been given away since."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil

from envace.types import JSON

OWNERS = "ENVACE_OWNERS"  # environment variable: tokens of the owners a process descends from, joined by ":"
GRACE_S = 5.0  # between asking a process to end and ending it
GONE = (psutil.NoSuchProcess, ProcessLookupError)
NOT_OURS = (*GONE, psutil.AccessDenied, PermissionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of one boot of one machine: no two ever share it, whatever becomes of the clock."""

    host: str
    boot: str
    pid: int
    start: int
    """Clock ticks between the boot and the start of the process."""

    @classmethod
    def read(cls, data: Mapping[str, JSON]) -> ProcessIdentity | None:
        """From what `asdict` wrote, as JSON or as text; None where something is missing."""
        try:
            return cls(
                host=str(data["host"]),
                boot=str(data["boot"]),
                pid=int(str(data["pid"])),
                start=int(str(data["start"])),
            )
        except (KeyError, ValueError):
            return None


def identify(pid: int | None = None) -> ProcessIdentity:
    """The identity of a live process, this one by default. Raises psutil.NoSuchProcess."""
    pid = os.getpid() if pid is None else pid
    return ProcessIdentity(host=platform.node(), boot=_boot(), pid=pid, start=_start(pid))


def _boot() -> str:
    """The kernel's name of this boot; empty where it has none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _start(pid: int) -> int:
    if not os.path.isdir("/proc/self"):
        return int(psutil.Process(pid).create_time())  # no Linux: seconds since the epoch, the best there is
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except GONE + (FileNotFoundError,):
        raise psutil.NoSuchProcess(pid) from None


def alive(identity: ProcessIdentity) -> bool:
    """It runs on this machine: the pid is not free, no zombie, and was not given to another process."""
    try:
        return identify(identity.pid) == identity and lives(psutil.Process(identity.pid))
    except psutil.NoSuchProcess:
        return False


def proven_dead(identity: ProcessIdentity) -> bool:
    """True when the process ran on this machine and is gone; others cannot be judged from here."""
    return identity.host == platform.node() and not alive(identity)


def lives(process: psutil.Process) -> bool:
    """It still is the same process, and no zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def others(belongs: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Live processes that `belongs` is true for, this one excepted."""
    found = []
    for process in psutil.process_iter():
        with suppress(*NOT_OURS):
            if process.pid != os.getpid() and belongs(process) and lives(process):
                found.append(process)
    return found


def carriers(token: str, variable: str = OWNERS) -> list[psutil.Process]:
    """Processes whose environment holds the token in a variable."""

    def carries(process: psutil.Process) -> bool:
        value: str = process.environ().get(variable, "")
        return token == value or token in value.split(":")

    return others(carries)


def session(leader: int) -> list[psutil.Process]:
    """Members of the session that a process opened; its number is not given away while one of them lives."""
    return others(lambda p: os.getsid(p.pid) == leader)


def family(leader: int) -> list[psutil.Process]:
    """The session of a process, and those of its descendants that opened one of their own."""
    with suppress(psutil.NoSuchProcess):
        return list({*session(leader), *filter(lives, psutil.Process(leader).children(recursive=True))})
    return session(leader)


def end(find: Callable[[], Iterable[psutil.Process]], grace_s: float = GRACE_S) -> int:
    """Ask what `find` finds to end, and end what is left or came since after `grace_s`; how many there
    were."""
    asked = set(find())
    _signal(asked, signal.SIGTERM)
    _wait_gone(asked, grace_s)
    left = {*filter(lives, asked), *find()}
    _signal(left, signal.SIGKILL)
    _wait_gone(left, GRACE_S)
    return len(asked | left)


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # psutil checks that the pid was not reused
            process.send_signal(number)


def _wait_gone(processes: Iterable[psutil.Process], timeout_s: float) -> None:
    """Unlike psutil's own wait this leaves the exit status to the parent."""
    deadline = time.monotonic() + timeout_s
    while any(map(lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def owner(state: Path, kind: str, what: str) -> Iterator[str]:
    """Register this process in `state/owners` and put a token into the environment of all it starts; yields
    that.

    What dead owners left running is ended first. Interrupted, it ends its own: exit handlers may not run
    then."""
    reap_dead_owners(state)
    token, before = uuid.uuid4().hex, os.environ.get(OWNERS, "")
    card = state / "owners" / f"{token}.json"
    card.parent.mkdir(parents=True, exist_ok=True)
    card.write_text(json.dumps({"kind": kind, "what": what, **asdict(identify())}))
    os.environ[OWNERS] = f"{before}:{token}".strip(":")
    try:
        yield token
    except Exception:
        raise
    except BaseException:
        end(partial(carriers, token))
        raise
    finally:
        os.environ[OWNERS] = before
        card.unlink(missing_ok=True)


def retire(state: Path, token: str) -> None:
    """End what an owner started and take its card away, from any thread of it."""
    end(partial(carriers, token), grace_s=2.0)
    (state / "owners" / f"{token}.json").unlink(missing_ok=True)


def reap_dead_owners(state: Path) -> list[str]:
    """End what dead owners left running; a line for each that left something."""
    notes = []
    for card in sorted((state / "owners").glob("*.json")):
        try:
            said = json.loads(card.read_text())
        except (ValueError, FileNotFoundError):
            continue  # being written, or removed, by its owner
        who = ProcessIdentity.read(said)
        if who is None or not proven_dead(who):
            continue
        ended = end(partial(carriers, card.stem))
        card.unlink(missing_ok=True)
        if ended:
            left = f"{said['kind']} ({said['what']}, pid {who.pid})"
            notes.append(f"ended {ended} process(es) left by a killed {left}")
    return notes
