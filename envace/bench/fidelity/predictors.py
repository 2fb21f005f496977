"""What can be had without a model: predictors that answer the very calls a policy rehearses.

Invariant: a pair is predicted from other tasks' truths, or from the records shown for it; never from its own
truth, nor from those of its own task.

constant  the most frequent response to the tool, whatever the arguments; of an unseen tool, to any tool
copy      the result of the record nearest to the call, of those the few-shot mode shows; the latest of equals
majority  refuses or answers as most calls of the tool do; a verdict only, a tie answers
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from envace.bench.fidelity.pairs import Pair
from envace.chat.contract import is_error
from envace.chat.text import canonical
from envace.rollout.few_shot import nearness, select_records
from envace.types import JSON

NOTHING = object()  # no response at all, where None would be a JSON value


class Others:
    """Truths by tool, with those of one task taken out."""

    def __init__(self, pairs: Sequence[Pair]):
        self.all: Counter[tuple[str, str]] = Counter((p.call.name, canonical(p.truth)) for p in pairs)
        self.own: dict[str, Counter[tuple[str, str]]] = {}
        for p in pairs:
            self.own.setdefault(p.task.id, Counter())[p.call.name, canonical(p.truth)] += 1

    def truths(self, pair: Pair) -> Counter[str]:
        """How often each response was given to the pair's tool in other tasks; to any tool when never."""
        left = self.all - self.own[pair.task.id]
        same, any_tool = Counter[str](), Counter[str]()
        for (tool, truth), n in left.items():
            any_tool[truth] += n
            if tool == pair.call.name:
                same[truth] += n
        return same or any_tool


def constant(pair: Pair, others: Others) -> JSON:
    """The most frequent response, of equals the first in the alphabet; NOTHING without another task."""
    found = others.truths(pair)
    return json.loads(min(found, key=lambda t: (-found[t], t))) if found else NOTHING


def majority(pair: Pair, others: Others) -> bool | None:
    """Whether most calls of the tool are refused; None when there is no other task."""
    found = others.truths(pair)
    refused = sum(n for truth, n in found.items() if is_error(json.loads(truth)))
    return 2 * refused > found.total() if found else None


def copy(pair: Pair, few_shot: str) -> JSON:
    """The nearest shown record's result; NOTHING when the mode shows none."""
    shown = select_records(pair.task.records, few_shot, pair.turn, pair.call, pair.task.lent)
    nearest = max(enumerate(shown), key=lambda r: (nearness(r[1], pair.call), r[0]), default=None)
    return nearest[1].result if nearest else NOTHING
