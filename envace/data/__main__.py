"""`python -m envace.data check FILE`: explain every fault of a file of rows. `... annotate`: label raw rows.

Flows in: a .jsonl, .json or .parquet file of rows in any form. Flows out: a line a fault (place, field, what is wrong,
reason code), then a count.
Invariant: exit status 0 only when every row is usable; 1 when some are not; 2 when the file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from envace import worlds
from envace.data.annotate.cli import add as add_annotate
from envace.data.check import check_row
from envace.data.knobs import knobs
from envace.data.sift import storable
from envace.data.sources import READERS, Raw
from envace.errors import DataError, boundary
from envace.params import Params, load


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; return the exit status."""
    cli = argparse.ArgumentParser(
        prog="python -m envace.data", description="Check and annotate files of rows."
    )
    commands = cli.add_subparsers(required=True, metavar="COMMAND")
    _add_check(commands)
    add_annotate(commands)
    args = cli.parse_args(argv)
    return args.run(args)  # every subcommand sets `run`: parsed arguments -> exit status


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "check",
        help="explain every fault of a file of rows",
        description="Explain every fault of a file of rows.",
    )
    command.add_argument("file", type=Path)
    command.add_argument(
        "--params",
        type=Path,
        default=Path("params.yaml"),
        help="where data.* says which rules hold, and rollout.worlds names your own worlds (%(default)s)",
    )
    command.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    params = load(args.params) if args.params.is_file() else Params()
    worlds.load(params.rollout.worlds)  # a row's rules may name them
    options = knobs(params).options
    rows, reasons = Counter({True: 0, False: 0}), Counter()
    for raw in _open(args.file):
        faults = [raw.fault] if raw.fault else check_row(raw.row, options)
        rows[not faults] += 1
        reasons.update({str(f.reason) for f in faults})
        for fault in faults:
            print(storable(f"{raw.where}: {fault}"))
    for reason, n in sorted(reasons.items()):
        print(f"{n:8} {reason}")
    print(f"{args.file}: {rows.total()} rows, {rows[True]} usable, {rows[False]} with faults")
    return int(rows[False] > 0 or rows.total() == 0)


def _open(path: Path) -> Iterator[Raw]:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    if path.suffix not in READERS:
        raise DataError(f"{path} must end in {' or '.join(READERS)}")
    return READERS[path.suffix](path, path.name)


if __name__ == "__main__":
    with boundary("data"):
        sys.exit(main())
