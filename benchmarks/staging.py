"""Staging beside a plain json + pydantic loop that checks the same rules.

Flows in: generated rows, a twentieth of them spoilt in every known way. Flows out: a table, and JSON where `--out`
says.
Invariant: nothing is timed before every peer gives every line the verdict it was made for; the order alternates
from round to round; one process, CPU seconds of it.

Two quantities:
  verdicts  lines in memory -> the reason each is left out for. Ours also makes the row that will be stored.
  staging   a file -> parquet. Ours also splits, sorts, measures and writes the manifest and the rejects.
Two peers: the plain loop checks every tool's schema with jsonschema anew; with `schemas remembered` it keeps which
texts were found good. `--scale` instead stages files of other sizes in processes of their own: time and memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import plain, rows
from envace.data.length import estimate
from envace.data.pool import chunks, rare_collections
from envace.data.settle import settle
from envace.data.sift import Sieve, sift
from envace.data.sources import READERS
from envace.data.stage import CHUNK, stage
from envace.errors import boundary
from envace.params import Params, parse

PLAIN, REMEMBERED, OURS = "plain loop", "plain loop, schemas remembered", "envace"
LIMIT = 3500  # tokens of a first prompt
Entries = dict[str, Callable[[], Any]]


def params_for(folder: Path) -> Params:
    return parse({
        "data": {"source": "local", "uri": str(folder), "max_first_prompt_tokens": LIMIT},
        "policy": {"kind": "tiny"},
    })  # fmt: skip


def our_verdicts(path: Path) -> list[str]:
    """The reason against each line of a file."""
    sieve, entries, reasons, first = Sieve(estimate, LIMIT), [], {}, 0
    with rare_collections():
        for chunk in chunks(READERS[".jsonl"](path, path.name), CHUNK):
            found = sift(sieve, chunk)
            for entry, _ in found.kept:
                entry.ordinal += first
                entries.append(entry)
            reasons |= {first + k: line["reason"] for k, line in found.rejects}
            first += found.rows
        reasons |= {entry.ordinal: str(fault.reason) for entry, fault in settle(entries)[1]}
    return [reasons.get(k, "") for k in range(first)]


def their_verdicts(path: Path, remember: bool) -> list[str]:
    with path.open(encoding="utf-8") as f:
        return [reason for reason, _ in plain.verdicts(f, plain.Plain(LIMIT, remember))]


def verdict_entries(path: Path) -> Entries:
    return {
        PLAIN: lambda: their_verdicts(path, False),
        REMEMBERED: lambda: their_verdicts(path, True),
        OURS: lambda: our_verdicts(path),
    }


def staging_entries(path: Path, out: Path) -> Entries:
    def ours() -> Counter[str]:
        counts = stage(params_for(path.parent), out / "ours", workers=1)["counts"]
        return Counter(counts["rejected_by_reason"])

    def theirs(remember: bool) -> Counter[str]:
        return plain.stage(path, out / "plain.parquet", plain.Plain(LIMIT, remember))

    return {PLAIN: lambda: theirs(False), REMEMBERED: lambda: theirs(True), OURS: ours}


def check_equal(entries: Entries, want: Any) -> None:
    """Raises ValueError when a peer says anything else than what the rows were made for."""
    for name, run in entries.items():
        if (got := run()) != want:
            raise ValueError(
                f"{name} differs from what the rows were made for: nothing to time ({got} {want})"
            )


def _first(got: Any, want: Any) -> str:
    if isinstance(want, list):
        k = next(k for k, pair in enumerate(zip(got, want)) if pair[0] != pair[1])
        return f"line {k + 1}: {got[k]!r}, not {want[k]!r}"
    return f"{dict(got - want)} too many, {dict(want - got)} too few"


def measure(entries: Entries, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each round; even rounds run forwards, odd ones backwards."""
    spent: dict[str, list[float]] = {name: [] for name in entries}
    for k in range(rounds):
        for name in list(entries) if k % 2 == 0 else list(entries)[::-1]:
            began = time.process_time()
            entries[name]()
            spent[name].append(time.process_time() - began)
    return spent


def report(what: str, n: int, size: int, entries: Entries, want: Any, rounds: int) -> dict[str, Any]:
    check_equal(entries, want)
    spent = measure(entries, rounds)
    rate = {name: n / statistics.median(values) for name, values in spent.items()}
    print(f"\n{what}: {n} rows of {size / n / 1e3:.1f} KB, {rounds} rounds, all verdicts equal")
    for name in entries:
        low, high = n / max(spent[name]), n / min(spent[name])
        print(
            f"  {name:32} {rate[name]:9.0f} rows a CPU second ({low:.0f} to {high:.0f})"
            f"  envace is {rate[OURS] / rate[name]:5.2f}x"
        )
    return {"what": what, "rows": n, "bytes": size, "rounds": rounds, "rows_a_second": rate}


def one(path: Path, workers: int) -> dict[str, Any]:
    """Stage a file once; run in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        counts = stage(params_for(path.parent), Path(out) / "staged", workers=workers)["counts"]
        wall = time.perf_counter() - began
    peak = [
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return {
        "rows": counts["read"], "workers": workers, "seconds": wall, "rows_a_second": counts["read"] / wall,
        "peak_mib": peak[0], "largest_worker_mib": peak[1], "rejected_by_reason": counts["rejected_by_reason"],
    }  # fmt: skip


def scale(n: int, workers: int, folder: Path) -> dict[str, Any]:
    """Time and memory of one staging of n rows."""
    path = folder / f"{n}" / "rows.jsonl"
    if not path.exists():
        path.parent.mkdir()
        rows.write(path, n)
    argv = [sys.executable, "-m", "benchmarks.staging", "--one", str(path), "--workers", str(workers)]
    found = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    print(
        f"  {n} rows, {workers} processes: {found['seconds']:.1f} s, {found['rows_a_second']:.0f} rows a second, "
        f"peak {found['peak_mib']:.0f} MiB, largest worker {found['largest_worker_mib']:.0f} MiB"
    )
    return found


def beside_peers(n: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    path = folder / "peers" / "rows.jsonl"
    path.parent.mkdir()
    wanted = rows.write(path, n)
    reasons = [rows.line(k, 0, 0.05)[1] for k in range(n)]
    size = path.stat().st_size
    return [
        report("verdicts", n, size, verdict_entries(path), reasons, rounds),
        report("staging", n, size, staging_entries(path, folder), wanted, rounds),
    ]


def main() -> None:
    """Compare staging with a plain loop."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.staging", description=main.__doc__)
    cli.add_argument("--rows", type=int, default=1000)
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--scale", type=int, nargs="+", metavar="ROWS", help="time and memory of whole stagings")
    cli.add_argument("--workers", type=int, nargs="+", default=[1], help="processes, for --scale")
    cli.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.staging"):
        if args.one:
            print(json.dumps(one(args.one, args.workers[0])))
            return
        with tempfile.TemporaryDirectory() as folder:
            if args.scale:
                found = [scale(n, w, Path(folder)) for n in args.scale for w in args.workers]
            else:
                found = beside_peers(args.rows, args.rounds, Path(folder))
        if args.out:
            versions = {name: version(name) for name in ("pydantic", "msgspec", "jsonschema", "pyarrow")}
            versions |= {"python": platform.python_version(), "machine": platform.machine()}
            args.out.write_text(
                json.dumps({"results": found, "versions": versions}, indent=2) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    sys.exit(main())
