"""Does one request a turn judge as one request a step and item does? A seeded share of turns is judged both ways.

Flows in: the answers of both ways to the same items. Flows out: counts, the share in agreement, and Cohen's kappa.
Invariant: which turns are audited depends on the seed and on what was said alone, not on time or order; an audit
never changes a verdict, and an item that either way left unscored is no agreement and no disagreement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envace.types import JSON, Answer, Message


def audited(seed: int, share: float, task_id: str, turn: int, content: bytes) -> bool:
    """Whether this turn belongs to the sample: a hash, read as a number in [0, 1), lies below `share`."""
    head = f"{seed}\0{task_id}\0{turn}\0".encode("utf-8", "replace")
    digest = hashlib.sha256(head + content).digest()
    return int.from_bytes(digest[:7], "big") / 2**56 < share


def said(messages: Sequence[Message]) -> bytes:
    """What an audit is drawn by: who said what, in order."""
    calls = ([(c.name, c.arguments) for c in m.calls] for m in messages)
    parts = (f"{m.role}\0{m.turn}\0{m.thinking}\0{m.content}\0{c}" for m, c in zip(messages, calls))
    return "\1".join(parts).encode("utf-8", "replace")


@dataclass(slots=True)
class Agreement:
    """Items answered both ways, by their two answers."""

    turns: int = 0
    both_yes: int = 0
    both_no: int = 0
    turn_only: int = 0
    """Yes by the turn, no by its steps."""
    steps_only: int = 0
    unscored: int = 0
    """No answer in at least one of the two."""

    def count(self, by_turn: Sequence[Answer], by_steps: Sequence[Answer]) -> None:
        """The items of one more turn."""
        self.turns += 1
        for pair in zip(by_turn, by_steps, strict=True):
            if Answer.UNSCORED in pair:
                self.unscored += 1
            else:
                name = CELLS[pair]
                setattr(self, name, getattr(self, name) + 1)

    @property
    def compared(self) -> int:
        return self.both_yes + self.both_no + self.turn_only + self.steps_only

    @property
    def share(self) -> float | None:
        """Of the compared items, those answered alike; None when there are none."""
        return (self.both_yes + self.both_no) / self.compared if self.compared else None

    @property
    def kappa(self) -> float | None:
        """(agreement - chance) / (1 - chance), chance from each way's own rate of yes; None when chance is 1."""
        if (n := self.compared) == 0:
            return None
        turn_yes, steps_yes = (self.both_yes + self.turn_only) / n, (self.both_yes + self.steps_only) / n
        chance = turn_yes * steps_yes + (1 - turn_yes) * (1 - steps_yes)
        return ((self.share or 0.0) - chance) / (1 - chance) if chance < 1 else None


CELLS = {
    (Answer.YES, Answer.YES): "both_yes",
    (Answer.NO, Answer.NO): "both_no",
    (Answer.YES, Answer.NO): "turn_only",
    (Answer.NO, Answer.YES): "steps_only",
}


def agreement(records: Iterable[dict[str, JSON]]) -> Agreement:
    """The agreement in lines of `audit.jsonl`, as several processes have written them."""
    total = Agreement()
    for record in records:
        total.count(*([Answer(a) for a in record[way]] for way in ("turn_answers", "step_answers")))
    return total
