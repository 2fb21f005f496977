"""The scripted expert: what a perfect agent does next, given the goal and what it has seen.

Flows in: a turn's goal (`envace/worlds/desk/goals.py`) and the observations shown in that turn (true or
rehearsed). Flows out: the next calls, or the reply to the user.
Invariant: the expert decides on the observations shown and never reads the hidden database.
"""

from __future__ import annotations

from envace.types import JSON, ToolCall
from envace.worlds.desk.goals import CHANGES, LOOKS, Goal, kind_of, targets
from envace.worlds.desk.tools import SPECS
from envace.worlds.desk.world import lookup_call
from envace.worlds.registry import Seen


def next_step(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    """The calls to make now (several are parallel), or the reply that closes the turn."""
    things = targets(goal)
    waiting = [c for c in (lookup_call(*t) for t in things) if shown(seen, c) is None]
    if waiting:
        return waiting
    if "via" in goal:
        kind, account = kind_of(goal), shown(seen, lookup_call(*things[0])) or {}
        object_id = account.get(kind)
        if not isinstance(object_id, str):
            return _missing("account", goal["via"], account)
        things = [(kind, object_id)]
        if shown(seen, lookup_call(*things[0])) is None:
            return [lookup_call(*things[0])]
    if goal["do"] == "look":
        return " and ".join(_told(kind, i, shown(seen, lookup_call(kind, i)) or {}) for kind, i in things)
    return _change(goal, things[0][1], seen)


def _told(kind: str, object_id: str, found: dict[str, JSON]) -> str:
    fields, words = LOOKS[kind]
    if "error" in found:
        return f"{kind} {object_id} is not found"
    return words.format(id=object_id, **{f: found.get(f, "unknown") for f in fields})


def _missing(kind: str, object_id: str, found: dict[str, JSON]) -> str:
    return f"sorry, {kind} {object_id} is {'not found' if 'error' in found else 'unknown'}"


def _change(goal: Goal, object_id: str, seen: Seen) -> list[ToolCall] | str:
    spec, change = SPECS[goal["do"]], CHANGES[goal["do"]]
    found = shown(seen, lookup_call(spec.kind, object_id)) or {}
    if spec.state not in found:
        return _missing(spec.kind, object_id, found)
    if found[spec.state] != spec.needs:
        return f"sorry, {spec.kind} {object_id} is {found[spec.state]}"
    if change.limit is not None and over_limit(goal, found):
        return f"sorry, {spec.kind} {object_id} has {found[change.limit[0]]}"
    call = change_call(goal, object_id)
    answer = shown(seen, call)
    if answer is None:
        return [call]
    words = {"id": object_id, change.tell: found.get(change.tell, "unknown")}
    if "error" in answer:
        return f"sorry, {answer['error']}, {spec.kind} {object_id} keeps {words[change.tell]}"
    return change.done.format(**words, new=goal.get(change.argument))


def change_call(goal: Goal, object_id: str) -> ToolCall:
    """The call that makes the change a goal asks for."""
    spec, argument = SPECS[goal["do"]], CHANGES[goal["do"]].argument
    given = {argument: goal[argument]} if argument else {}
    return ToolCall(name=spec.name, arguments={spec.key: object_id, **given})


def over_limit(goal: Goal, found: dict[str, JSON]) -> bool:
    """Whether the looked-up object is beyond what the desk goes along with."""
    limit = CHANGES[goal["do"]].limit
    if limit is None:
        return False
    field, most = limit
    value = found.get(field)
    return isinstance(value, (int, float)) and value > most


def shown(seen: Seen, call: ToolCall) -> dict[str, JSON] | None:
    """The first response shown for this very call, None when there is none; what is no object counts as
    {}."""
    for made, content in seen:
        if made == call:
            known = content if isinstance(content, dict) else {}
            return {"error": known["error"]} if "error" in known else known
    return None
