"""Which recorded results REHEARSE is shown as examples (switch `few_shot`).

Invariant: under `up_to_turn`, `leave_one_out` and `past_only` nothing of a later turn is shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from envace.chat.text import canonical
from envace.chat.transcript import matches
from envace.types import Record, Task, ToolCall, replace


def select_records(
    records: Sequence[Record], mode: str, turn: int, call: ToolCall, others: Sequence[Record] = ()
) -> list[Record]:
    """The records a few-shot mode lets REHEARSE see for a call of user turn `turn`.

    gold: all, later turns too. up_to_turn: this and earlier turns. leave_one_out: the same without those that
    match the call. past_only: earlier turns only. other_sample: all of another task (`others`, see `donor`),
    so that form can be learned from examples and facts cannot. none.
    """
    whole = {"gold": records, "other_sample": others, "none": ()}
    if mode in whole:
        return list(whole[mode])
    seen = [r for r in records if r.turn < turn + (mode != "past_only")]
    return [r for r in seen if not matches(r, call)] if mode == "leave_one_out" else seen


def nearness(record: Record, call: ToolCall) -> int:
    """0 when a record has nothing to do with a call; a match is above everything else."""
    if matches(record, call):
        return 1_000_000
    wanted = {canonical(v) for v in call.named.values()}
    shared = sum(canonical(v) in wanted for v in record.call.named.values())
    return 2 * (record.call.name == call.name) + shared


def donor(task: Task, tasks: Sequence[Task]) -> tuple[Record, ...]:
    """The records of the other task that have the most tools in common with this one; none where none is
    shared. Of equals a hash of both ids decides, so every task has its own and each run the same."""
    own = {t.get("function", t)["name"] for t in task.tools}

    def rank(other: Task) -> tuple[int, bytes]:
        shared = own & {r.call.name for r in other.records}
        return len(shared), hashlib.sha256(f"{task.id}\0{other.id}".encode()).digest()

    best = max((t for t in tasks if t.id != task.id), key=rank, default=None)
    return best.records if best is not None and rank(best)[0] else ()


def lend(task: Task, tasks: Sequence[Task], few_shot: str) -> Task:
    """The task with what another one lends it, where the method shows that."""
    return replace(task, lent=donor(task, tasks)) if few_shot == "other_sample" else task
