"""`python -m envace.data check FILE`: explain every fault of a file of rows. `... annotate`: label raw rows.

Flows in: a .jsonl, .json or .parquet file of rows in any form. Flows out: a line a fault (place, field, what is wrong,
reason code), equal rows last, then a count.
Invariant: every fault that staging the file alone would find is named; exit status 0 only when every row is usable, 1
when some are not, 2 when the file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from envace.config import Params, load
from envace.data.annotate.cli import add as add_annotate
from envace.data.check import examine
from envace.data.faults import Fault, Reject
from envace.data.knobs import knobs
from envace.data.length import prompt_counter
from envace.data.settle import Entry, settle
from envace.data.sift import Sieve, keep, storable
from envace.data.sources import READERS, Raw
from envace.errors import DataError, boundary
from envace.worlds import registry as worlds


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
    turned, (count, how) = knobs(params), prompt_counter(params, here=True)
    rows, faulty, reasons = 0, 0, Counter()
    for where, faults in _verdicts(_open(args.file), turned.sieve(count)):
        rows += 1
        faulty += bool(faults)
        reasons.update({str(f.reason) for f in faults})
        for fault in faults:
            print(storable(f"{where}: {fault}"))
    for reason, n in sorted(reasons.items()):
        print(f"{n:8} {reason}" + (f" ({how})" if reason == Reject.PROMPT_TOO_LONG else ""))
    print(f"{args.file}: {rows} rows, {rows - faulty} usable, {faulty} with faults")
    return int(faulty > 0 or rows == 0)


def _verdicts(raws: Iterable[Raw], sieve: Sieve) -> Iterator[tuple[str, list[Fault]]]:
    """Each row's place and faults; then those of rows that equal another, which only the whole file tells."""
    entries: list[Entry] = []
    places: list[str] = []  # of the entries, whose ordinals count them
    for raw in raws:
        checked = None if raw.fault else examine(raw.row, sieve.options)
        faults = checked.faults if checked else [raw.fault]
        if not faults:
            entry, _, faults = keep(sieve, len(entries), raw, checked)
        if faults:
            yield raw.where, faults
        else:
            entries.append(entry)
            places.append(raw.where)
    gone = {g.entry.ordinal: g for g in settle(entries)[1] if g.reason is not Reject.NOT_SELECTED}
    for k, place in enumerate(places):
        yield place, [gone[k].fault(lambda e: places[e.ordinal])] if k in gone else []


def _open(path: Path) -> Iterator[Raw]:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    if path.suffix not in READERS:
        raise DataError(f"{path} must end in {' or '.join(READERS)}")
    return READERS[path.suffix](path, path.name)


if __name__ == "__main__":
    with boundary("data"):
        sys.exit(main())
