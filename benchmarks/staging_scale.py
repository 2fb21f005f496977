"""Whole stagings of other sizes, each in a process of its own: time, and memory of all its processes together.

Flows in: how many rows, how many processes. Flows out: seconds of wall and CPU, peak memory, counts.
Invariant: memory is the sum over the staging process and its workers at one moment, shared pages counted once (PSS), and
its peak is that of samples taken while it runs; counts are held against what the rows were made for.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import rows
from benchmarks.spoil import SETTINGS
from envace.config import Params, parse
from envace.data.stage import stage

EVERY_S = 0.1  # between two samples of memory


def params_for(folder: Path) -> Params:
    """Staging of a folder of generated rows under the rules they were made for."""
    return parse({"data": {"source": "local", "uri": str(folder), **SETTINGS}, "policy": {"kind": "tiny"}})


def scale(n: int, workers: int, folder: Path) -> dict[str, Any]:
    """Time and memory of one staging of n rows."""
    path = folder / f"{n}" / "rows.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True)
        wanted = rows.write(path, n)
        path.with_suffix(".wanted").write_text(json.dumps(wanted))
    argv = [sys.executable, "-m", "benchmarks.staging_scale", str(path), "--workers", str(workers)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        peak = _peak(child)
        told = child.stdout.read()
    if child.returncode:
        raise RuntimeError(f"staging {n} rows failed with status {child.returncode}")
    found = json.loads(told) | {"peak_mib": peak / 2**20, "row_bytes": path.stat().st_size / n}
    wanted = json.loads(path.with_suffix(".wanted").read_text())
    found["exact"] = found["rejected_by_reason"] == wanted and found["rows"] == n
    print(
        f"  {n} rows, {workers} processes: {found['seconds']:.1f} s, {found['cpu_seconds']:.1f} CPU s, "
        f"peak {found['peak_mib']:.0f} MiB together, counts {'exact' if found['exact'] else 'WRONG'}",
        flush=True,
    )
    return found


def _peak(child: subprocess.Popen[bytes]) -> int:
    """The most memory that a process and its own held together while it ran."""
    process, peak = psutil.Process(child.pid), 0
    while child.poll() is None:
        peak = max(peak, _together(process))
        time.sleep(EVERY_S)
    return peak


def _together(process: psutil.Process) -> int:
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(map(_held, family))


def _held(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return 0  # it has just ended


def one(path: Path, workers: int) -> dict[str, Any]:
    """Stage a file once."""
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        counts = stage(params_for(path.parent), Path(out) / "staged", workers=workers, say=_aside)["counts"]
        wall = time.perf_counter() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "rows": counts["read"], "workers": workers, "seconds": wall,
        "cpu_seconds": sum(u.ru_utime + u.ru_stime for u in used), "rejected_by_reason": counts["rejected_by_reason"],
    }  # fmt: skip


def _aside(text: str) -> None:
    """Standard output holds the numbers alone."""
    print(text, file=sys.stderr)


if __name__ == "__main__":
    cli = argparse.ArgumentParser(prog="python -m benchmarks.staging_scale")
    cli.add_argument("path", type=Path)
    cli.add_argument("--workers", type=int, default=1)
    args = cli.parse_args()
    print(json.dumps(one(args.path, args.workers)))
