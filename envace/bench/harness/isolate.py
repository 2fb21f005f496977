"""A network of its own for a job: nothing but the addresses it was given.

Flows in: a job. Flows out: how to start it (`bwrap ...` or `unshare ...`), the ports to listen on inside, and
the job with its addresses as they are called there; or None where the system allows no namespaces.
Invariant: a loopback address keeps its name and port inside, any other becomes 127.0.0.1:<port>. Only the
text of those addresses is changed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from urllib.parse import urlsplit

from envace.bench.harness.spec import HarnessJob
from envace.io.addresses import is_loopback, origin

FIRST_PORT = 20080  # of remote addresses, inside, where every port is free
WAYS = (
    "bwrap --dev-bind / / --proc /proc --unshare-net --unshare-pid --new-session --die-with-parent --",
    "unshare --user --map-root-user --net --pid --fork --kill-child --mount-proc --",
    "unshare --user --map-root-user --net --",  # where /proc may not be mounted
)
CHECK_S = 20.0


@cache
def wrap() -> tuple[str, ...] | None:
    """The command that stands before a program to give it an empty network; None where none is allowed."""
    for way in WAYS:
        program, *options = way.split()
        command = (shutil.which(program) or "", *options)
        try:
            if subprocess.run([*command, "true"], capture_output=True, timeout=CHECK_S).returncode == 0:
                return command
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """How a job is started without a network. `ports` is origin -> port inside."""

    wrap: tuple[str, ...]
    ports: dict[str, int]
    job: HarnessJob


def inside(job: HarnessJob) -> Inside | None:
    """None when the job asks for the open web or the system gives no namespace."""
    command = None if job.open_network else wrap()
    if command is None:
        return None
    ports = ports_of(job.reaches)
    return Inside(wrap=command, ports=ports, job=renamed(job, ports))


def ports_of(addresses: Sequence[str]) -> dict[str, int]:
    """One port per origin. Loopback first: theirs are given."""
    ports: dict[str, int] = {}
    for address in sorted(addresses, key=lambda a: (not is_loopback(a), a)):
        target = origin(address)
        wanted = urlsplit(target).port if _keeps_name(address) else FIRST_PORT
        while target not in ports and wanted in ports.values():
            wanted = (wanted or 0) + 1 if wanted and wanted < 65535 else FIRST_PORT
        ports.setdefault(target, wanted or FIRST_PORT)
    return ports


def renamed(job: HarnessJob, ports: dict[str, int]) -> HarnessJob:
    """The job with every address written as it is reached inside, user and password kept."""
    names: dict[str, str] = {}
    for address in job.reaches:
        parts, port = urlsplit(address), ports[origin(address)]
        if not (_keeps_name(address) and urlsplit(origin(address)).port == port):
            user = parts.netloc.rpartition("@")[0]
            names[f"{parts.scheme}://{parts.netloc}"] = f"http://{user + '@' if user else ''}127.0.0.1:{port}"
    if not names:
        return job
    longest_first = sorted(names, key=len, reverse=True)
    find = re.compile("|".join(re.escape(name) + r"(?![\w.:-])" for name in longest_first))

    def rename(text: str) -> str:
        return find.sub(lambda m: names[m[0]], text)

    return replace(
        job,
        argv=tuple(map(rename, job.argv)),
        env={k: rename(v) for k, v in job.env.items()},
        files={k: rename(v) for k, v in job.files.items()},
    )


def _keeps_name(address: str) -> bool:
    """What a program inside reaches by the same text: plain http on the loopback address it would look up."""
    return urlsplit(address).scheme == "http" and urlsplit(address).hostname in ("localhost", "127.0.0.1")
