"""(call, true response) pairs in the conversation they belong to.

Flows in: tasks with records or a reference dialogue, and a world where one can be built. Flows out: `Pair`s.
Invariant: a pair's history holds true responses only, and its truth was given by the world (or the data set)
for that call at that point; a refusal is a truth like any other.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envace.types import JSON, Message, Record, Task, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One call to rehearse and what the true source answered."""

    task: Task
    turn: int
    index: int  # position among the task's pairs
    history: tuple[Message, ...]  # before the message that makes the call
    call: ToolCall
    truth: JSON
    kind: str  # reference: a call of the reference dialogue; probe: the same call gone wrong


def pairs_of(task: Task, seed: int) -> list[Pair]:
    """Every call of the reference dialogue, and for each a faulty variant where a world can answer it."""
    made: list[Pair] = []
    world = _world(task)
    for turn, history, calls, answers in _steps(task):
        for call, truth in zip(calls, answers):
            shared = {"task": task, "turn": turn, "history": history}
            rng = random.Random(f"{seed}/{task.id}/{len(made)}")
            wrong = spoilt(call, rng)
            if world is not None and wrong is not None:
                refusal = world.call(wrong).content  # a spoilt id changes nothing: it names no object
                made.append(Pair(**shared, index=len(made), call=wrong, truth=refusal, kind="probe"))
            if world is not None:
                truth = world.call(call).content
            made.append(Pair(**shared, index=len(made), call=call, truth=truth, kind="reference"))
    return made


def choose(tasks: Sequence[Task], limit: int, seed: int) -> list[Pair]:
    """At most `limit` pairs (0: all) of all tasks, chosen by hash: independent of order and of policy."""
    pairs = [p for task in tasks for p in pairs_of(task, seed)]
    pairs.sort(key=lambda p: hashlib.sha256(f"{seed}/{p.task.id}/{p.index}".encode()).hexdigest())
    return pairs[:limit] if limit else pairs


def spoilt(call: ToolCall, rng: random.Random) -> ToolCall | None:
    """The call with one text argument changed so that it names nothing: cut in front, or reversed."""
    names = [n for n, v in call.arguments.items() if isinstance(v, str) and len(v) > 2 and v[1:] != v[:0:-1]]
    if not names:
        return None
    name = rng.choice(names)
    value = call.arguments[name]
    wrong = value[1:] if rng.random() < 0.5 else value[0] + value[:0:-1]
    return ToolCall(name=call.name, arguments={**call.arguments, name: wrong})


def _steps(task: Task) -> Iterator[tuple[int, tuple[Message, ...], list[ToolCall], list[JSON]]]:
    """Per message with calls: its turn, what stands before it, its calls and their responses."""
    dialogue = task.reference or from_records(task.prefix, task.user_turns, task.records)
    for at, message in enumerate(dialogue):
        if message.calls:
            answers = [json.loads(m.content) for m in dialogue[at + 1 : at + 1 + len(message.calls)]]
            yield message.turn, tuple(dialogue[:at]), list(message.calls), answers


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
            dialogue.append(Message(role="tool", content=json.dumps(r.result), name=r.call.name, turn=turn))
    return tuple(dialogue)


def _world(task: Task):  # type: ignore[no-untyped-def]
    """The task's executable world, None for tasks that bring only records."""
    if not task.world or task.world.get("kind") != "desk":
        return None
    from envace.desk.world import World

    return World.from_task(task)
