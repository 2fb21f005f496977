"""The whole laptop run as a new user has it: a clone of HEAD, `make repro`, seconds of each stage and peak
memory.

The virtual environment of this checkout is used, so that what is measured is the run and not the package
index."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.measure import report


def memory(process: psutil.Process) -> float:
    """MiB that a process and its descendants hold, shared pages counted by share (PSS)."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total / 2**20


def main(quick: bool = False) -> None:
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="envace-laptop-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(here), str(clone)], check=True)
        (clone / ".venv").symlink_to(here / ".venv")
        if quick:
            subprocess.run(
                [clone / ".venv/bin/python", "-m", "envace.params", "--size", "bench"], cwd=clone, check=True
            )
        began, peak = time.monotonic(), 0.0
        run = subprocess.Popen([clone / ".venv/bin/python", "-m", "flows.reproduce"], cwd=clone)
        while run.poll() is None:
            peak = max(peak, memory(psutil.Process(run.pid)))
            time.sleep(1)
        seconds = time.monotonic() - began
        if run.returncode:
            raise SystemExit(f"the run failed with exit status {run.returncode}")
        spent = {
            path.stem: [json.loads(path.read_text())["seconds"]] for path in clone.glob(".state/costs/*.json")
        }
    report("laptop", f"peak {peak:.0f} MiB", {**spent, "the whole run": [seconds]}, "the whole run", "s")
