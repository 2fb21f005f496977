"""Agents that never read an observation: what success on the desk is worth without rehearsing or looking.

Invariant: an answer is a function of the goal alone; what it says about the hidden world is what is most
often true of such goals in other tasks of the same split (another seed), so that no ceiling is low for want
of what its split consists of.

`BlindPolicy` is the best of them but for chance: it makes the look-ups a checklist asks for, ignores the
answers, and for each goal (argument included) acts and replies as turns out right most often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import cache

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
"""Tasks of a split that its guesses are made from."""
OTHER_SEED = 1_000_003
"""Added to the seed: the tasks played are never among those fitted on."""
Guesses = dict[Hashable, tuple[bool, str]]
"""Of a goal: make the change?, reply with {id} and {new} to fill in."""


def floor_policies(tasks: Sequence[Task], seed: int) -> dict[str, RulePolicy]:
    """Agents of the desk that need no skill: `always_refuse`, and `blind`, the best that reads no
    observation."""
    guesses = {task.id: _guesses(seed, "unseen" if "unseen" in task.tags else "held") for task in tasks}
    return {"always_refuse": AlwaysRefuse(tasks), "blind": BlindPolicy(tasks, guesses)}


@cache
def _guesses(seed: int, split: str) -> Guesses:
    """Made from other tasks whose goals and outcomes are dealt as in this split."""
    return fit(generate(seed + OTHER_SEED, split, FIT_TASKS))


class AlwaysRefuse(RulePolicy):
    """Looks up what the user names, then says that it does not exist."""

    def __init__(self, tasks: Iterable[Task]):
        super().__init__()
        self.goals = {t.id: world_data(t)["goals"] for t in tasks}

    def speak(self, request: GenerationRequest) -> str:
        goal = self.goals[request.task_id][request.turn]
        start = max((i for i, m in enumerate(request.messages) if m.role == "user"), default=0)
        asked = [call for m in request.messages[start:] for call in m.calls]
        steps = self.steps(request.task_id, goal)
        done = len([step for step in steps if step[0] in asked])
        return render_calls(steps[done]) if done < len(steps) else self.reply(request.task_id, goal)

    def steps(self, task_id: str, goal: Goal) -> list[list[ToolCall]]:
        """What it calls, message by message, whatever it is shown."""
        return [[lookup_call(*t) for t in targets(goal)]]

    def reply(self, task_id: str, goal: Goal) -> str:
        """What it says behind the last call."""
        return "sorry, " + " and ".join(f"{kind} {i} is not found" for kind, i in targets(goal))


class BlindPolicy(AlwaysRefuse):
    """Acts and replies as the guesses for each task say; see the module's docstring."""

    def __init__(self, tasks: Iterable[Task], guesses: dict[str, Guesses]):
        super().__init__(tasks)
        self.guesses = guesses

    def steps(self, task_id: str, goal: Goal) -> list[list[ToolCall]]:
        makes, _ = self.guesses[task_id].get(_key(goal, 0), (False, ""))
        change = makes and "id" in goal  # through an account it cannot know whose
        return [*super().steps(task_id, goal), *([[change_call(goal, goal["id"])]] if change else [])]

    def reply(self, task_id: str, goal: Goal) -> str:
        new = goal.get(CHANGES[goal["do"]].argument, "") if goal["do"] in CHANGES else ""
        told = []
        for k, (_, object_id) in enumerate(targets(goal)):
            _, words = self.guesses[task_id].get(_key(goal, k), (False, "sorry"))
            told.append(words.format(id=object_id, new=new))
        return " and ".join(told)


def fit(tasks: Sequence[Task]) -> Guesses:
    """For each goal, what the expert does most often."""
    seen: dict[Hashable, Counter[tuple[bool, str]]] = defaultdict(Counter)
    for task in tasks:
        for turn, goal in enumerate(world_data(task)["goals"]):
            mine = [m for m in task.reference if m.turn == turn and m.role == "assistant"]
            calls = [c for m in mine for c in m.calls]
            changed = any(SPECS[c.name].writes for c in calls)
            reply = mine[-1].content
            for k, part in enumerate(reply.split(" and ") if goal["do"] == "look" else [reply]):
                for call in calls:  # the object's id is left open; the argument is part of the key
                    part = part.replace(f"{call.arguments[SPECS[call.name].key]} ", "{id} ")
                seen[_key(goal, k)][changed, part] += 1
    return {k: counts.most_common(1)[0][0] for k, counts in seen.items()}


def _key(goal: Goal, k: int) -> Hashable:
    """Goals a blind agent can tell apart, for the k-th object named."""
    if goal["do"] == "look":
        return ("look", "via" in goal, kind_of(goal) if "via" in goal else goal["of"][k][0])
    return (goal["do"], "via" in goal, goal.get(CHANGES[goal["do"]].argument))
