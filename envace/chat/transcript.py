"""What a transcript's calls were answered, and how far two responses agree.

A *leaf* of a response is a scalar (or an empty object or list) with its path.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envace.chat.contract import is_error
from envace.chat.text import canonical
from envace.types import JSON, Message, Observation, Record, ToolCall, replace

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call with the response shown for it."""

    call: ToolCall
    content: JSON
    """None when the response is not JSON."""
    turn: int
    asked: int
    """Index of the message that made the call."""
    shown: int | None
    """Index of the message that answered; None: not answered."""


def exchanges(messages: Sequence[Message]) -> list[Exchange]:
    """Every call of a transcript with its response, paired in order."""
    found: list[Exchange] = []
    waiting: list[int] = []
    for at, message in enumerate(messages):
        if message.role == "assistant":
            waiting = list(range(len(found), len(found) + len(message.calls)))
            found += [Exchange(c, None, message.turn, at, None) for c in message.calls]
        elif message.role == "tool" and waiting:
            try:
                content = json.loads(message.content)
            except (ValueError, RecursionError):
                content = None
            i = waiting.pop(0)
            found[i] = replace(found[i], content=content, shown=at)
    return found


def answered(
    messages: Sequence[Message], observations: Sequence[Observation]
) -> Iterator[tuple[Exchange, Observation]]:
    """Every answered call of an episode with its observation.

    The episode's tool messages are the last ones of the transcript, one an observation; those that answer an
    unreadable message belong to no call.
    """
    places = [i for i, m in enumerate(messages) if m.role == "tool"]
    by_place = dict(zip(places[len(places) - len(observations) :], observations, strict=True))
    for e in exchanges(messages):
        if e.shown in by_place:
            yield e, by_place[e.shown]


def seen_in_turn(messages: Sequence[Message]) -> list[tuple[ToolCall, JSON]]:
    """The calls since the last user message, each with the response shown for it."""
    start = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
    return [(e.call, e.content) for e in exchanges(messages[start:]) if e.shown is not None]


def matches(record: Record, call: ToolCall) -> bool:
    """Same tool and equal arguments, whatever their order."""
    return record.call.name == call.name and canonical(record.call.arguments) == canonical(call.arguments)


class Replies:
    """The recorded replies of a task, each given to the call it followed: a call that is made again in its
    turn gets the next record of it, and the turn's last one from then on."""

    def __init__(self, records: Sequence[Record]):
        self.records = records
        self._asked: Counter[tuple[int, str]] = Counter()

    def next(self, call: ToolCall, turn: int) -> Record | None:
        """Of the call's records those of this turn, else the latest before it, else the first."""
        found = [r for r in self.records if matches(r, call)]
        own = [r for r in found if r.turn == turn]
        key = (turn, canonical([call.name, call.arguments]))
        self._asked[key] += 1
        past = own[: self._asked[key]] or [r for r in found if r.turn < turn] or found[:1]
        return past[-1] if past else None


def agreement(said: JSON, truth: JSON) -> float:
    """One number from 0 to 1: 0 when one of them refuses the call and the other does not, else the mean of
    `shape` and the F1 of their leaves (equal values at equal paths). Equal responses agree fully.

    Truth {"state": "new", "n": 2}, said {"state": "new", "n": 3}: shape 1, leaves 1/2, agreement 3/4.
    """
    if is_error(said) != is_error(truth):
        return 0.0
    a, b = Counter(leaves(said)), Counter(leaves(truth))
    return (shape(said, truth) + 2 * (a & b).total() / (a.total() + b.total())) / 2


def shape(said: JSON, truth: JSON) -> float:
    """F1 of the key paths of two JSON values; two values without any key agree fully."""
    a, b = key_paths(said), key_paths(truth)
    return 2 * len(a & b) / (len(a) + len(b)) if a or b else 1.0


def key_paths(value: JSON, at: KeyPath = ()) -> set[KeyPath]:
    """Paths to every key; the place in a list is written "[]"."""
    if isinstance(value, dict):
        return {p for k, v in value.items() for p in ({(*at, k)} | key_paths(v, (*at, k)))}
    if isinstance(value, list):
        return {p for v in value for p in key_paths(v, (*at, "[]"))}
    return set()


def leaves(content: JSON, path: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf as (path, JSON text); list places share the path `[]`."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(content, list) and content:
        for value in content:
            yield from leaves(value, f"{path}[]")
    else:
        yield path, canonical(content)
