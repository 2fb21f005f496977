"""Agents that never read an observation: what success on the desk is worth without rehearsing or looking.

Flows in: goals and the user's words. Flows out: calls and replies that depend on nothing shown.
Invariant: an answer is a function of the goal alone; what it says about the hidden world is what is most
often true of such goals in other tasks of the same split (another seed), so that no ceiling is low for want
of what its split consists of.

`BlindPolicy` is the best of them but for chance: it makes the look-ups a checklist asks for, ignores the
answers, and for each goal (argument included) acts and replies as turns out right most often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from envace.chat.calls import render_calls
from envace.policy.protocol import GenerationRequest
from envace.policy.scripted import RulePolicy
from envace.types import Task, ToolCall
from envace.worlds.desk.expert import change_call
from envace.worlds.desk.goals import CHANGES, Goal, kind_of, targets
from envace.worlds.desk.tasks import generate
from envace.worlds.desk.tools import SPECS
from envace.worlds.desk.world import lookup_call
from envace.worlds.registry import world_data

FIT_TASKS = 1500
"""Tasks the guesses of a split are made from."""
OTHER_SEED = 1_000_003
"""Added to the seed: the tasks played are never among those fitted on."""
Guess = tuple[bool, str]
"""Make the change?, reply with {id} and {new} to fill in."""


def floor_policies(tasks: Sequence[Task], seed: int) -> dict[str, RulePolicy]:
    """Agents of the desk that need no skill: `always_refuse`, and `blind`, the best that reads no
    observation."""
    split = {t.id: t.id.split("-")[1] for t in tasks}  # `desk-held-3`
    fitted = {name: fit(generate(seed + OTHER_SEED, name, FIT_TASKS)) for name in sorted({*split.values()})}
    guesses = {task: fitted[name] for task, name in split.items()}
    return {"always_refuse": AlwaysRefuse(tasks), "blind": BlindPolicy(tasks, guesses)}


class AlwaysRefuse(RulePolicy):
    """Looks up what the user names, then says that it does not exist."""

    def __init__(self, tasks: Iterable[Task]):
        super().__init__()
        self.goals = {t.id: world_data(t)["goals"] for t in tasks}

    def speak(self, request: GenerationRequest) -> str:
        goal = self.goals[request.task_id][request.turn]
        calls = [] if _asked(request) else [lookup_call(*t) for t in targets(goal)]
        return render_calls(calls) if calls else self.reply(request.task_id, goal)

    def reply(self, task: str, goal: Goal) -> str:
        return "sorry, " + " and ".join(f"{kind} {i} is not found" for kind, i in targets(goal))


class BlindPolicy(AlwaysRefuse):
    """Guesses as `guesses` says of each task; see the module's docstring."""

    def __init__(self, tasks: Iterable[Task], guesses: Mapping[str, Mapping[Hashable, Guess]]):
        super().__init__(tasks)
        self.guesses = guesses

    def speak(self, request: GenerationRequest) -> str:
        goal = self.goals[request.task_id][request.turn]
        asked = _asked(request)
        change = self._change(request.task_id, goal)
        if change and asked and change not in asked:
            return render_calls([change])
        return super().speak(request)

    def _change(self, task: str, goal: Goal) -> ToolCall | None:
        """The change it would make; through an account it cannot know whose."""
        makes, _ = self.guesses[task].get(key(goal, 0), (False, ""))
        return change_call(goal, goal["id"]) if makes and "id" in goal else None

    def reply(self, task: str, goal: Goal) -> str:
        new = goal.get(CHANGES[goal["do"]].argument, "") if goal["do"] in CHANGES else ""
        told = [self.guesses[task].get(key(goal, k), (False, "sorry"))[1] for k in range(len(targets(goal)))]
        return " and ".join(t.format(id=i, new=new) for t, (_, i) in zip(told, targets(goal)))


def fit(tasks: Sequence[Task]) -> dict[Hashable, Guess]:
    """For each goal, what the expert does most often."""
    seen: dict[Hashable, Counter[Guess]] = defaultdict(Counter)
    for task in tasks:
        for k, guess in _right(task):
            seen[k][guess] += 1
    return {k: counts.most_common(1)[0][0] for k, counts in seen.items()}


def key(goal: Goal, k: int) -> Hashable:
    """Goals a blind agent can tell apart, for the k-th object named."""
    if goal["do"] == "look":
        return ("look", "via" in goal, kind_of(goal) if "via" in goal else goal["of"][k][0])
    return (goal["do"], "via" in goal, goal.get(CHANGES[goal["do"]].argument))


def _right(task: Task) -> Iterator[tuple[Hashable, Guess]]:
    """(key, what was right) of every object of every turn."""
    for turn, goal in enumerate(world_data(task)["goals"]):
        mine = [m for m in task.reference if m.turn == turn and m.role == "assistant"]
        calls = [c for m in mine for c in m.calls]
        changed = any(SPECS[c.name].writes for c in calls)
        ids = [c.arguments[SPECS[c.name].key] for c in calls]
        parts = mine[-1].content.split(" and ") if goal["do"] == "look" else [mine[-1].content]
        for k, part in enumerate(parts):
            yield key(goal, k), (changed, _slots(part, ids))


def _slots(reply: str, ids: Sequence[str]) -> str:
    """The reply with the object's id left open; the argument stays, as it is part of the key."""
    for i in ids:
        reply = reply.replace(f"{i} ", "{id} ")
    return reply


def _asked(request: GenerationRequest) -> list[ToolCall]:
    """The calls made since the user last spoke."""
    start = max((i for i, m in enumerate(request.messages) if m.role == "user"), default=0)
    return [c for m in request.messages[start:] for c in m.calls]
