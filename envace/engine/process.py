"""The trainer as a process, and the leftovers of one that was not watched to its end.

The card `trainer.pid` in the work folder names the trainer and who watches it. Invariant: only processes are
signalled that carry this work folder in their environment or are in the session that the card's process
opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import psutil

from envace.errors import EnvironmentUnready
from envace.io import processes
from envace.io.children import GRACE_S, Child, start
from envace.io.processes import ProcessIdentity, identify

VARIABLE = "ENVACE_WORK"  # in the environment of every process of a run
CARD = "trainer.pid"


def start_trainer(argv: list[str], env: Mapping[str, str], work: Path) -> Child:
    """Start in a session of its own, output to `trainer.log`, and write the card."""
    with (work / "trainer.log").open("ab") as log:
        log.write(f"\n=== {' '.join(argv[:4])} ...\n".encode())
        log.flush()
        child = start(argv, env={**env, VARIABLE: str(work)}, output=log)
    card = {**asdict(identify(child.popen.pid)), "watcher": asdict(identify())}
    (work / CARD).write_text(json.dumps(card))
    return child


def refuse_second(work: Path) -> None:
    """Raises EnvironmentUnready when the trainer of a work folder lives and is still watched."""
    trainer, watcher = _card(work)
    if trainer and watcher and processes.alive(trainer) and processes.alive(watcher):
        raise EnvironmentUnready(
            f"training in {work} is already running (pid {trainer.pid}); wait for it or stop it first"
        )


def _card(work: Path) -> tuple[ProcessIdentity | None, ProcessIdentity | None]:
    """(trainer, its watcher) of a work folder, None for what is not written there."""
    try:
        said = json.loads((work / CARD).read_text())
        return ProcessIdentity.read(said), ProcessIdentity.read(said["watcher"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None, None


def running(work: Path) -> list[psutil.Process]:
    """Live processes started for a work folder.

    Most carry the variable; some of Ray's helpers overwrite their environment with a title, but stay in the
    session that the trainer opened. Its number is not given away while they live.
    """
    trainer, _ = _card(work)
    found = set(processes.carriers(str(work), VARIABLE))
    if trainer and trainer.boot == identify().boot and trainer.host == identify().host:
        number_is_its_own = not psutil.pid_exists(trainer.pid) or identify(trainer.pid) == trainer
        found |= set(processes.session(trainer.pid)) if number_is_its_own else set()
    return list(found)


def reap(work: Path) -> int:
    """End every process of a work folder; how many there were."""
    return processes.end(lambda: running(work), GRACE_S)
