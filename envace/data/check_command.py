"""`python -m envace.data check FILE`: every fault of a file of rows, and what their own dialogues earn.

Flows in: a .jsonl, .json or .parquet file of rows in any form. Flows out: a line a fault (place, field, what
is wrong, reason code), a line a usable row whose dialogue fails items of its own checklist, equal rows last,
then what the dialogues earn, and a count. Invariant: every fault that staging the file alone would find is
named; exit status 0 only when every row is usable, 1 when some are not, 2 when the file cannot be read."""

from __future__ import annotations

import argparse
from collections import Counter
from statistics import fmean

from envace.config import Params, load
from envace.data.check import examine
from envace.data.faults import Reject
from envace.data.judged_rows import judged_rows
from envace.data.prompt_length import prompt_counter
from envace.data.readers import READERS
from envace.data.schema import task_of
from envace.data.verdicts import RowLimits, judge_row, storable
from envace.errors import DataError
from envace.judge.checklist import episode_reward, turn_reward
from envace.judge.rules import judge_item
from envace.types import Answer, Task
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
    limits, n, reasons, earned = RowLimits.of(params, count), 0, Counter[str](), list[float | None]()
    with judged_rows(":memory:") as usable:
        for raw in READERS[args.file.suffix](args.file, args.file.name):
            n += 1
            checked = None if raw.fault else examine(raw.row, limits.options)
            verdict = judge_row(limits, raw, checked)
            reasons.update({str(f.reason) for f in verdict.faults})
            for fault in verdict.faults:
                print(storable(f"{raw.where}: {fault}"))
            if checked and verdict.kept:
                reward, failed = reference_reward(task_of(checked))
                earned.append(reward)
                if failed:
                    worth = "" if reward is None else f" and earns {reward:.3f}"
                    print(f"{raw.where}: its own dialogue fails {', '.join(failed)}{worth}")
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
    if earned:
        known = [reward for reward in earned if reward is not None]
        told = (
            [f"mean reward {fmean(known):.3f}", f"{sum(r > 0.999999 for r in known)} earn 1"] if known else []
        )
        told += [f"{len(earned) - len(known)} need a language model as judge"] * (len(known) < len(earned))
        print(f"reference dialogues, judged by their rules: {', '.join(told)}")
    print(f"{args.file}: {n} rows, {good} usable, {n - good} with faults")
    return int(good < n or n == 0)


def reference_reward(task: Task) -> tuple[float | None, list[str]]:
    """What the reference dialogue earns by the rules of its checklist, and the items it fails, as
    `turn 0 C1`; None where an item has no rule."""
    rewards, failed = list[float | None](), list[str]()
    for turn, items in enumerate(task.checklist):
        verdicts = [judge_item(item, task, turn, task.reference) for item in items]
        failed += [f"turn {turn} {v.item_id}" for v in verdicts if v.answer is Answer.NO]
        rewards.append(turn_reward(items, verdicts).reward)
    scored = [reward for reward in rewards if reward is not None]
    return (episode_reward(scored, task.n_turns) if len(scored) == len(rewards) else None), failed
