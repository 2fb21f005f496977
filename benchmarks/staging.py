"""Staging beside a plain json + pydantic loop that checks the same rules.

Flows in: generated rows, a twentieth of them spoilt in every known way. Flows out: a table, and JSON where `--out`
says.
Invariant: nothing is timed before every peer gives every line the verdict it was made for; the order alternates
from round to round; one process, CPU seconds of it.

Two quantities:
  verdicts  lines in memory -> the reason each is left out for. Ours also makes the row that will be stored.
  staging   a file -> parquet. Ours also splits, sorts, measures and writes the manifest and the rejects.
Two peers: the plain loop checks every tool's schema with jsonschema anew; with `schemas remembered`, the fair one, it
keeps what was found of a tool's text. `--scale` instead stages files of other sizes in processes of their own: time and
memory. `--gate` does both and holds the numbers against the bars of benchmarks/staging_gate.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import plain, rows, staging_gate
from benchmarks.spoil import SETTINGS
from benchmarks.staging_scale import params_for, scale
from benchmarks.table import write_json
from envace.data.knobs import knobs
from envace.data.length import estimate
from envace.data.pool import chunks, rare_collections
from envace.data.settle import settle
from envace.data.sift import sift
from envace.data.sources import READERS
from envace.data.stage import CHUNK, stage
from envace.errors import StageFailed, boundary

PLAIN, REMEMBERED, OURS = "plain loop", "plain loop, schemas remembered", "envace"
LIMIT = SETTINGS["max_first_prompt_tokens"]
PACKAGES = ("pydantic", "msgspec", "jsonschema", "pyarrow")
Entries = dict[str, Callable[[], Any]]


def our_verdicts(path: Path) -> list[str]:
    """The reason against each line of a file."""
    sieve, entries, reasons, first = knobs(params_for(path.parent)).sieve(estimate), [], {}, 0
    with rare_collections():
        for chunk in chunks(READERS[".jsonl"](path, path.name), CHUNK):
            found = sift(sieve, chunk)
            for entry, _ in found.kept:
                entry.ordinal += first
                entries.append(entry)
            reasons |= {first + k: line["reason"] for k, line in found.rejects}
            first += found.rows
        reasons |= {gone.entry.ordinal: str(gone.reason) for gone in settle(entries)[1]}
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


def gate(n: int, rounds: int, workers: list[int], sizes: list[int], folder: Path) -> dict[str, Any]:
    """Every size with the first number of processes, the largest with the others too, and both peers."""
    scaled = [scale(size, workers[0], folder) for size in sizes]
    more = [scale(max(sizes), w, folder) for w in workers[1:]]
    peers = beside_peers(n, rounds, folder)
    found = staging_gate.bars(scaled, peers, OURS)
    print(f"\n{staging_gate.sizes([*scaled, *more])}\n\n{staging_gate.table(found)}")
    return {"results": peers, "scale": [*scaled, *more], "bars": [asdict(b) for b in found]}


def main() -> None:
    """Compare staging with a plain loop."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.staging", description=main.__doc__)
    cli.add_argument("--rows", type=int, default=1000)
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--scale", type=int, nargs="+", metavar="ROWS", help="time and memory of whole stagings")
    cli.add_argument("--gate", type=int, nargs="*", metavar="ROWS",
                     help=f"peers, and stagings of {', '.join(map(str, staging_gate.SIZES))} rows, against their bars")  # fmt: skip
    cli.add_argument("--workers", type=int, nargs="+", default=[1], help="processes, for --scale and --gate")
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.staging"), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.gate is not None:
            sizes = args.gate or list(staging_gate.SIZES)
            found = gate(args.rows, args.rounds, args.workers, sizes, folder)
        elif args.scale:
            found = {"results": [scale(n, w, folder) for n in args.scale for w in args.workers]}
        else:
            found = {"results": beside_peers(args.rows, args.rounds, folder)}
        if args.out:
            write_json(args.out, found, PACKAGES, {})
        if missed := [bar["what"] for bar in found.get("bars", ()) if not bar["met"]]:
            raise StageFailed(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    sys.exit(main())
