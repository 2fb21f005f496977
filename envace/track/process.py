"""Which process is which: a pid alone may have been given to someone else since.

Flows in: pids. Flows out: identities (host, pid, start time) that can be written down and checked later.
Invariant: `alive` is true only for the very process the identity was taken from.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    host: str
    pid: int
    start: float  # seconds since the epoch, as the kernel counts it


def identify(pid: int | None = None) -> Identity:
    """The identity of a live process (this one by default). Raises psutil.NoSuchProcess."""
    pid = os.getpid() if pid is None else pid
    return Identity(host=platform.node(), pid=pid, start=psutil.Process(pid).create_time())


def here(identity: Identity) -> bool:
    """Only processes of this machine can be judged."""
    return identity.host == platform.node()


def alive(identity: Identity) -> bool:
    """False when the pid is free, a zombie, or belongs to a later process."""
    try:
        process = psutil.Process(identity.pid)
        same = abs(process.create_time() - identity.start) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def proven_dead(identity: Identity) -> bool:
    """True when the process ran on this machine and is gone."""
    return here(identity) and not alive(identity)
