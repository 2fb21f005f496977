"""`python -m envace.data check FILE`: every fault of a file of rows.

Flows in: a .jsonl, .json or .parquet file of rows in any form. Flows out: a line a fault (place, field, what
is wrong, reason code), equal rows last, then a count. Invariant: every fault that staging the file alone
would find is named; exit status 0 only when every row is usable, 1 when some are not, 2 when the file cannot
be read."""

from __future__ import annotations

import argparse
from collections import Counter

from envace.config import Params, load
from envace.data.check import examine
from envace.data.faults import Reject
from envace.data.judged_rows import judged_rows
from envace.data.prompt_length import prompt_counter
from envace.data.readers import READERS
from envace.data.verdicts import RowLimits, judge_row, storable
from envace.errors import DataError
from envace.worlds import registry as worlds


def check_file(args: argparse.Namespace) -> int:
    """Name the faults of `args.file`; returns the exit status. Raises DataError and ParamsError."""
    params = load(args.params) if args.params.is_file() else Params()
    worlds.load(params.rollout.worlds)  # a row's rules may name them
    if not args.file.is_file():
        raise DataError(f"{args.file} does not exist")
    if args.file.suffix not in READERS:
        raise DataError(f"{args.file} must end in {' or '.join(READERS)}")
    count, how = prompt_counter(params, here=True)
    limits, n, reasons = RowLimits.of(params, count), 0, Counter[str]()
    with judged_rows(":memory:") as usable:
        for raw in READERS[args.file.suffix](args.file, args.file.name):
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
