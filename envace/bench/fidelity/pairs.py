"""(call, true response) pairs in the conversation they belong to.

Invariant: a pair's history holds true responses only, and its truth was given by the world (or the data set)
for that call at that point; a refusal is a truth like any other. A probe passes the tool's schema: a call
that does not is refused before REHEARSE is asked.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from envace.chat.text import canonical, dumps
from envace.chat.validate import validate_call
from envace.types import JSON, Message, Record, Task, ToolCall
from envace.worlds.registry import make_world


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One call to rehearse and what the true source answered."""

    task: Task
    turn: int
    index: int  # position among the task's pairs
    history: tuple[Message, ...]  # before the message that makes the call
    call: ToolCall
    truth: JSON
    kind: str  # reference: a call of the reference dialogue; probe: the same call with a word spoilt


def pairs_of(task: Task, seed: int) -> list[Pair]:
    """Every call of the reference dialogue, and for each a faulty variant where a world can answer it."""
    made: list[Pair] = []
    done: list[ToolCall] = []  # reference calls so far
    world = make_world(task) if task.world else None  # else the task brings only records
    for turn, history, calls, answers in _steps(task):
        for call, truth in zip(calls, answers):
            shared = {"task": task, "turn": turn, "history": history}
            if world is not None:
                rng = random.Random(f"{seed}/{task.id}/{len(made)}")
                wrong = spoilt(call, rng, lambda c: validate_call(c, task.tools)[0] is None)
                if wrong is not None:
                    other = make_world(task)  # of its own, in which the calls so far were made
                    answer = [other.call(c).content for c in (*done, wrong)][-1]
                    made.append(Pair(**shared, index=len(made), call=wrong, truth=answer, kind="probe"))
                truth = world.call(call).content
            made.append(Pair(**shared, index=len(made), call=call, truth=truth, kind="reference"))
            done.append(call)
    return made


def choose(tasks: Sequence[Task], limit: int, seed: int) -> list[Pair]:
    """At most `limit` pairs (0: all) of all tasks, chosen by hash: independent of order and of policy."""
    pairs = [p for task in tasks for p in pairs_of(task, seed)]
    pairs.sort(key=lambda p: hashlib.sha256(f"{seed}/{p.task.id}/{p.index}".encode()).hexdigest())
    return pairs[:limit] if limit else pairs


def recorded(pair: Pair) -> bool:
    """Whether a record of this turn or an earlier one holds the very call with its true response."""
    arguments, truth = canonical(pair.call.arguments), canonical(pair.truth)
    near = (r for r in pair.task.records if r.turn <= pair.turn and r.call.name == pair.call.name)
    return any((canonical(r.call.arguments), canonical(r.result)) == (arguments, truth) for r in near)


def spoilt(
    call: ToolCall, rng: random.Random, usable: Callable[[ToolCall], bool] = lambda call: True
) -> ToolCall | None:
    """The call with one text argument changed so that it names nothing: cut in front, or reversed.

    None when no argument can be changed so that the call stays usable.
    """
    variants = [
        ToolCall(name=call.name, arguments={**call.arguments, name: wrong})
        for name, value in call.arguments.items()
        if isinstance(value, str) and len(value) > 2
        for wrong in (value[1:], value[0] + value[:0:-1])
        if wrong != value
    ]
    variants = [v for v in variants if usable(v)]
    return rng.choice(variants) if variants else None


def _steps(task: Task) -> Iterator[tuple[int, tuple[Message, ...], tuple[ToolCall, ...], list[JSON]]]:
    """Per message with calls: its turn, what stands before it, its calls and the responses behind them."""
    dialogue = task.reference or from_records(task.prefix, task.user_turns, task.records)
    for at, message in enumerate(dialogue):
        if message.calls:
            answers = [json.loads(m.content) for m in dialogue[at + 1 : at + 1 + len(message.calls)]]
            yield message.turn, tuple(dialogue[:at]), message.calls, answers


def from_records(
    prefix: Sequence[Message], user_turns: Sequence[str], records: Sequence[Record]
) -> tuple[Message, ...]:
    """A dialogue rebuilt from records alone; the replies to the user are unknown and left out."""
    dialogue = list(prefix)
    for turn in range(1 + len(user_turns)):
        if turn:
            dialogue.append(Message(role="user", content=user_turns[turn - 1], turn=turn))
        for r in (r for r in records if r.turn == turn):
            dialogue.append(Message(role="assistant", content="", calls=(r.call,), turn=turn))
            dialogue.append(Message(role="tool", content=dumps(r.result), name=r.call.name, turn=turn))
    return tuple(dialogue)
