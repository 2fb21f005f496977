"""Kinds of executable world, by name: the project's own and the user's.

Flows in: a task with `world = {"kind": "<name>", ...}`, or `rollout.worlds` of params.yaml. Flows out: the
class of a kind, or one episode's world.
Invariant: a name stands for one class in a process; the project's own kinds cannot be replaced, and none is
imported before it is used.

A kind is a class with `from_task(task)`, `call(ToolCall) -> Observation` (never raises, whatever the
arguments; a refusal is `{"error": "<why>"}` with error=True) and `state()`, plain JSON. Two more are
optional: `from_records( records)`, the initial world as the task's records show it, lets a checklist hold
rehearsed responses to the world's rules; `MALFORMED: tuple[str, ...]` names refusals that a validator in
front may word otherwise.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

from envace.chat.text import dumps
from envace.errors import DataError, ParamsError
from envace.types import JSON, Message, Observation, Record, Source, Task, ToolCall


class World(Protocol):
    """One episode's world."""

    def call(self, call: ToolCall) -> Observation: ...

    def state(self) -> JSON: ...


class WorldKind(World, Protocol):
    """A class of worlds, which makes that of a task."""

    @classmethod
    def from_task(cls, task: Task) -> World: ...


class ToolRefusal(Exception):
    """A tool says no; the message is what the caller reads."""


class EmbeddedWorld:
    """What the worlds of the project share; subclasses say what a call is answered in `answer`."""

    KIND = ""
    # refusals of calls that reach no tool; a validator in front may word them otherwise
    MALFORMED = ("unknown tool", "bad arguments")

    def __init__(self, data: dict[str, JSON]):
        """Raises DataError when `data` is not what the kind's module describes."""
        raise NotImplementedError

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """A fresh world of a task; raises DataError when the task brings none of this kind."""
        if not task.world or task.world.get("kind") != cls.KIND:
            raise DataError(
                f"task {task.id} brings no {cls.KIND} world: its field `world` is empty or of another kind"
            )
        return cls(task.world)

    def call(self, call: ToolCall) -> Observation:
        """Answer one call; a refusal is an observation with `error` set."""
        try:
            content = self.answer(call)
        except ToolRefusal as refusal:
            return Observation(content={"error": str(refusal)}, source=Source.ENVIRONMENT, error=True)
        return Observation(content=content, source=Source.ENVIRONMENT)

    def answer(self, call: ToolCall) -> dict[str, JSON]:
        """The tool's true response. Raises ToolRefusal, having changed nothing."""
        raise NotImplementedError


OWN = {"desk": "envace.worlds.desk.world:DeskWorld", "files": "envace.worlds.files.world:FilesWorld"}
_users: dict[str, type[WorldKind]] = {}


def kinds() -> list[str]:
    """Every name that can be used, without importing any of them."""
    return [*OWN, *_users]


def register(name: str, cls: type[WorldKind]) -> None:
    """Make `cls` the world of kind `name`, as `rollout.worlds` does. Raises DataError when it cannot be
    one."""
    if name in OWN:
        raise DataError(f"the world kind {name!r} comes with the project; choose another name")
    named = getattr(cls, "__name__", repr(cls))
    for needed in ("from_task", "call", "state"):
        if not callable(getattr(cls, needed, None)):
            raise DataError(f"world kind {name!r}: {named} has no method {needed}")
    if inspect.iscoroutinefunction(cls.call):
        raise DataError(f"world kind {name!r}: {named}.call must not be a coroutine")
    _users[name] = cls


def world_class(name: str) -> type[WorldKind]:
    """The class of a kind. Raises DataError naming the known ones."""
    if name in _users:
        return _users[name]
    if name not in OWN:
        raise DataError(
            f"no world of kind {name!r}; known: {', '.join(kinds())}; "
            "rollout.worlds of params.yaml adds your own"
        )
    kind: type[WorldKind] = pkgutil.resolve_name(OWN[name])
    return kind


def world_data(task: Task) -> dict[str, JSON]:
    """What a task's world is made of. Raises DataError when it brings none."""
    if task.world is None:
        raise DataError(f"task {task.id} has no executable world")
    return task.world


def make_world(task: Task) -> World:
    """A fresh world of a task. Raises DataError when it brings none, or none that is known."""
    kind = kind_of(task)
    if kind is None:
        raise DataError(f"task {task.id} has no executable world")
    return world_class(kind).from_task(task)


def kind_of(task: Task) -> str | None:
    """The kind of a task's world; None when it brings none. Raises DataError when the kind is left out."""
    if not task.world:
        return None
    kind = task.world.get("kind")
    if not isinstance(kind, str) or not kind:
        raise DataError(f"task {task.id}: its world says no kind; known: {', '.join(kinds())}")
    return kind


def load(named: Mapping[str, str]) -> None:
    """Register every kind of `rollout.worlds`, `{"shop": "my_shop:Shop"}`. Raises ParamsError naming the
    key."""
    for name, target in named.items():
        module, _, attribute = target.partition(":")
        key = f"rollout.worlds.{name} is {target!r}"
        try:
            cls = getattr(importlib.import_module(module), attribute)
        except ImportError as e:
            raise ParamsError(
                f"{key}: module {module} cannot be imported ({e}); it is looked for in the current folder "
                "and where Python finds modules"
            ) from e
        except AttributeError as e:
            raise ParamsError(f"{key}: module {module} has no class {attribute} ({e})") from e
        try:
            register(name, cls)
        except DataError as e:
            raise ParamsError(f"{key}: {e}") from None


def same_state(a: World, b: World) -> bool:
    """Whether two worlds hold equal states."""
    return json.dumps(a.state(), sort_keys=True) == json.dumps(b.state(), sort_keys=True)


# --- a dialogue in a world ------------------------------------------------------------------------

Seen = list[tuple[ToolCall, JSON]]  # this turn's calls with what was shown for them, in order
Step = Callable[
    [int, Seen], "Sequence[ToolCall] | str"
]  # (turn, seen) -> calls to make, or the closing reply


def play(
    prefix: Sequence[Message], user_turns: Sequence[str], step: Step, world: World
) -> tuple[tuple[Message, ...], tuple[Record, ...]]:
    """A scripted agent's dialogue and the records of its calls; `world` is changed.

    Each call of `step` gives the next calls, or the reply that closes the turn.
    """
    messages, records = list(prefix), []
    for turn in range(1 + len(user_turns)):
        if turn:
            messages.append(Message(role="user", content=user_turns[turn - 1], turn=turn))
        seen: Seen = []
        while not isinstance(said := step(turn, seen), str):
            messages.append(Message(role="assistant", content="", calls=tuple(said), turn=turn))
            for call in said:
                result = world.call(call).content
                seen.append((call, result))
                records.append(Record(turn=turn, call=call, result=result))
                messages.append(Message(role="tool", content=dumps(result), name=call.name, turn=turn))
        messages.append(Message(role="assistant", content=said, turn=turn))
    return tuple(messages), tuple(records)
