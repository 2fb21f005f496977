"""`python -m envace.data check FILE`: explain every fault of a file of rows. `... annotate`: label raw rows.

Flows in: a .jsonl, .json or .parquet file of rows in any form. Flows out: a line a fault (place, field, what
is wrong, reason code), equal rows last, then a count. Invariant: every fault that staging the file alone
would find is named; exit status 0 only when every row is usable, 1 when some are not, 2 when the file cannot
be read."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from envace.config import Params, load
from envace.data.annotate.arguments import add_commands
from envace.data.check import examine
from envace.data.faults import Reject
from envace.data.judged_rows import judged_rows
from envace.data.prompt_length import prompt_counter
from envace.data.readers import READERS, RawRow
from envace.data.verdicts import RowLimits, judge_row, storable
from envace.errors import DataError, boundary
from envace.worlds import registry as worlds


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; return the exit status."""
    cli = argparse.ArgumentParser(
        prog="python -m envace.data", description="Check and annotate files of rows."
    )
    commands = cli.add_subparsers(required=True, metavar="COMMAND")
    _add_check(commands)
    add_commands(commands)
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
    count, how = prompt_counter(params, here=True)
    limits, n, reasons = RowLimits.of(params, count), 0, Counter[str]()
    with judged_rows(":memory:") as usable:
        for raw in _open(args.file):
            n += 1
            verdict = judge_row(limits, raw, None if raw.fault else examine(raw.row, limits.options))
            reasons.update({str(f.reason) for f in verdict.faults})
            for fault in verdict.faults:
                print(storable(f"{raw.where}: {fault}"))
            if verdict.kept:
                verdict.kept.row = b""  # only which rows are equal is asked
                usable.add([verdict])
        usable.settle()
        good = len(usable.kept())
        for line in usable.rejects():  # which rows equal another, only the whole file tells
            if line["reason"] == Reject.NOT_SELECTED:
                good += 1
            else:
                reasons[line["reason"]] += 1
                print(f"{line['where']}: {line['field']}: {line['message']} [{line['reason']}]")
    for reason, k in sorted(reasons.items()):
        print(f"{k:8} {reason}" + (f" ({how})" if reason == Reject.PROMPT_TOO_LONG else ""))
    print(f"{args.file}: {n} rows, {good} usable, {n - good} with faults")
    return int(good < n or n == 0)


def _open(path: Path) -> Iterator[RawRow]:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    if path.suffix not in READERS:
        raise DataError(f"{path} must end in {' or '.join(READERS)}")
    return READERS[path.suffix](path, path.name)


if __name__ == "__main__":
    with boundary("data"):
        sys.exit(main())
