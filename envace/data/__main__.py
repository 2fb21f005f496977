"""`python -m envace.data FILE`: check a file of rows and explain every fault.

Flows in: a .jsonl or .parquet file of CM2 rows. Flows out: a line a fault (place, field, what is wrong, reason
code), then a count.
Invariant: exit status 0 only when every row is usable; 1 when some are not; 2 when the file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envace import worlds
from envace.data.check import check_row
from envace.data.sources import READERS
from envace.errors import DataError, boundary
from envace.params import load


def main(argv: list[str] | None = None) -> int:
    """Print every fault of the file's rows; return the exit status."""
    cli = argparse.ArgumentParser(prog="python -m envace.data", description="Check a file of CM2 rows.")
    cli.add_argument("file", type=Path)
    cli.add_argument(
        "--params",
        type=Path,
        default=Path("params.yaml"),
        help="where rollout.worlds names your own worlds (%(default)s)",
    )
    args = cli.parse_args(argv)
    path = args.file
    if args.params.is_file():
        worlds.load(load(args.params).rollout.worlds)  # a row's rules may name them
    rows = bad = 0
    for raw in _open(path):
        rows += 1
        faults = [raw.fault] if raw.fault else check_row(raw.row)
        bad += bool(faults)
        for fault in faults:
            print(f"{raw.where}: {fault}".encode("utf-8", "replace").decode())
    print(f"{path}: {rows} rows, {rows - bad} usable, {bad} with faults")
    return int(bad > 0 or rows == 0)


def _open(path: Path):
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    if path.suffix not in READERS:
        raise DataError(f"{path} must end in {' or '.join(READERS)}")
    return READERS[path.suffix](path, path.name)


if __name__ == "__main__":
    with boundary("data"):
        sys.exit(main())
