"""Does one request a turn judge as one request a step and item does? A seeded share of turns is judged both
ways.

Flows in: the answers of both ways to the same items. Flows out: counts, the share in agreement, and Cohen's
kappa.
Invariant: which turns are audited depends on the seed and on what was said alone, not on time or order; an
audit never changes a verdict, and an item that either way left unscored is no agreement and no disagreement.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from envace.types import JSON, Answer, Message


def audited(seed: int, share: float, task_id: str, turn: int, messages: Sequence[Message]) -> bool:
    """Whether this turn belongs to the sample: a hash of who said what, read as a number in [0, 1), is below
    `share`."""
    calls = ([(c.name, c.arguments) for c in m.calls] for m in messages)
    parts = (f"{m.role}\0{m.turn}\0{m.thinking}\0{m.content}\0{c}" for m, c in zip(messages, calls))
    drawn_by = f"{seed}\0{task_id}\0{turn}\0" + "\1".join(parts)
    digest = hashlib.sha256(drawn_by.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56 < share


class Agreement(Counter[tuple[Answer, Answer]]):
    """Items by their two answers, of the turn and of its steps."""

    @property
    def compared(self) -> int:
        """Items that both ways answered."""
        return sum(n for pair, n in self.items() if Answer.UNSCORED not in pair)

    @property
    def share(self) -> float | None:
        """Of the compared items, those answered alike; None when there are none."""
        alike = self[Answer.YES, Answer.YES] + self[Answer.NO, Answer.NO]
        return alike / self.compared if self.compared else None

    @property
    def kappa(self) -> float | None:
        """(agreement - chance) / (1 - chance), chance from each way's own rate of yes; None when chance is
        1."""
        if not (n := self.compared):
            return None
        both = self[Answer.YES, Answer.YES]
        turn_yes, steps_yes = (
            (both + self[Answer.YES, Answer.NO]) / n,
            (both + self[Answer.NO, Answer.YES]) / n,
        )
        chance = turn_yes * steps_yes + (1 - turn_yes) * (1 - steps_yes)
        return ((self.share or 0.0) - chance) / (1 - chance) if chance < 1 else None


def agreement(records: Iterable[dict[str, JSON]]) -> Agreement:
    """The agreement in lines of `audit.jsonl`, as several processes have written them."""
    found = Agreement()
    for record in records:
        ways = ([Answer(a) for a in record[way]] for way in ("turn_answers", "step_answers"))
        found.update(zip(*ways, strict=True))
    return found
