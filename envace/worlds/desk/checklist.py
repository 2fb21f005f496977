"""The checklist of a turn, from its goal: what a perfect answer does, as items with rules.

Flows in: a goal (see `envace/worlds/desk/goals.py`). Flows out: the five items of the turn, weights summing
to 1.
Invariant: no rule reads the hidden database; each branch on it hangs on the response shown in the transcript,
and no item holds for an agent that looked nothing up.
"""

from __future__ import annotations

from envace.types import JSON, Item
from envace.worlds.desk.goals import CHANGES, LOOKS, Goal, kind_of, said_words, targets
from envace.worlds.desk.tools import BY_KIND, SPECS, STATES, WRITES
from envace.worlds.rules import (
    CALLS,
    FAILED,
    REPLY,
    RESPONSE,
    Rule,
    all_of,
    if_observed,
    item,
    only_calls,
    says,
    seen,
)

# question and when it passes
LOOKED = (
    "Was everything the user asks about looked up?",
    "A look-up with the id the user gave, or the one its account shows, with its # in front.",
)
CHANGED = "Was exactly the right change made?"
TOLD = (
    "Does the reply tell the outcome?",
    "What was found or done, with the values shown; sorry and why not, where it could not be done.",
)
RESPONSES = "Are the responses those of the desk?"
ON_RECORD = "Each response to a call on record equals what the desk would answer."
BY_RULES = "Each other response follows from the records by the desk's rules."


def items(goal: Goal) -> tuple[Item, ...]:
    """Look-up, changes, reply, and two on the responses: those on record, those that are not."""
    changes = goal["do"] != "look"
    looked, acted, told = _change_rules(goal) if changes else _look_rules(goal)
    asked = "no change at all"
    if changes:
        state = SPECS[goal["do"]].needs
        asked = f"the change if the {kind_of(goal)} is {state} and the desk may, else no change"
    grounded: Rule = {"kind": "grounded", "world": "desk"}
    return (
        item(0, 0.2, LOOKED, CALLS, looked),
        item(1, 0.25, (CHANGED, f"After the look-up: {asked}."), CALLS, acted, required=changes),
        item(2, 0.25, TOLD, REPLY, told, required=True),
        item(3, 0.2, (RESPONSES, ON_RECORD), RESPONSE, {**grounded, "part": "records"}),
        item(4, 0.1, (RESPONSES, BY_RULES), RESPONSE, {**grounded, "part": "rules"}),
    )


def said(object_id: str) -> Rule:
    """The id `#kite` as the word the user said."""
    return {"user": object_id.lstrip("#"), "prefix": "#"}


def _objects(goal: Goal) -> tuple[Rule | None, list[tuple[str, str | None, Rule]]]:
    """The look-up of the account in between, if any; then (kind, id if the user gave it, look-up) of each
    object."""
    if "via" not in goal:
        return None, [(kind, i, _lookup(kind, said(i))) for kind, i in targets(goal)]
    account, kind = _lookup("account", said(goal["via"])), kind_of(goal)
    return account, [(kind, None, _lookup(kind, seen(account, kind)))]


def _through(account: Rule | None, kind: str, without: Rule, rule: Rule) -> Rule:
    """`rule` where the account shows such an object, else `without`."""
    return if_observed(account, [({kind: {"present": False}}, without)], rule) if account else rule


def _look_rules(goal: Goal) -> tuple[Rule, Rule, Rule]:
    account, objects = _objects(goal)
    names = [i for _, i, _ in objects]
    looked = all_of([{"kind": "called", **call} for _, _, call in objects])
    told = all_of([_tell(kind, i, call, names) for kind, i, call in objects])
    kind = objects[0][0]
    looked = _through(account, kind, _writes(), looked)
    return looked, all_of([looked, _writes()]), _through(account, kind, says("sorry"), told)


def _tell(kind: str, object_id: str | None, call: Rule, among: list[str | None]) -> Rule:
    """The reply tells the fields of one object; where several are told, in the part about it."""
    place = {"about": object_id, "among": among} if len(among) > 1 else {}
    fields = [_value(call, kind, f, place) for f in LOOKS[kind][0]]
    return if_observed(call, [(FAILED, {"kind": "says", **place, "all": ["not found"]})], all_of(fields))


def _change_rules(goal: Goal) -> tuple[Rule, Rule, Rule]:
    spec, change = SPECS[goal["do"]], CHANGES[goal["do"]]
    account, [(kind, _, look)] = _objects(goal)
    made = {"tool": spec.name, "args": {**look["args"], **_argument(goal)}}
    fits: Rule = {"error": {"present": False}, spec.state: spec.needs}
    over: list[tuple[Rule, Rule]] = []
    if change.limit:
        field, most = change.limit
        over = [({**fits, field: {"above": most}}, all_of([says("sorry"), _value(look, kind, field)]))]
    acted = if_observed(
        look, [*[(where, _writes()) for where, _ in over], (fits, _writes(made, after=look))], _writes()
    )
    wrong = {
        "kind": "says",
        "all": ["sorry"],
        "one_of": {"words": list(STATES[kind]), "is": seen(look, spec.state)},
    }
    told = if_observed(
        look, [(FAILED, says("sorry", "not found")), *over, (fits, _outcome(goal, look, made))], wrong
    )
    nothing = _writes()
    looked = _through(account, kind, nothing, {"kind": "called", **look})
    allowed, outcome = (nothing, acted), (says("sorry"), told)
    return looked, _through(account, kind, *allowed), _through(account, kind, *outcome)


def _argument(goal: Goal) -> Rule:
    name = CHANGES[goal["do"]].argument
    if not name:
        return {}
    return {name: {"user": goal[name]} if isinstance(goal[name], str) else goal[name]}


def _outcome(goal: Goal, look: Rule, made: Rule) -> Rule:
    """After the change was tried: refused, or done; both tell what the look-up showed."""
    change, kind = CHANGES[goal["do"]], kind_of(goal)
    new = goal.get(change.argument)
    kept = _value(look, kind, change.tell)
    was = _value(look, kind, change.tell, but=new)
    done = {"kind": "says", "all": [] if new is None else [new], "none": ["sorry"]}
    return if_observed(made, [(FAILED, all_of([says("sorry"), kept]))], all_of([done, was]))


def _value(look: Rule, kind: str, field: str, place: Rule | None = None, but: JSON = None) -> Rule:
    """The reply has the value shown for a field and no other value of that field, leaving out `but`."""
    words = [w for w in said_words(field, kind) if w != but]
    is_ = seen(look, field)
    if not words:
        return {"kind": "says", **(place or {}), "all": [is_]}
    return {"kind": "says", **(place or {}), "one_of": {"words": words, "is": is_}}


def _lookup(kind: str, object_id: JSON) -> Rule:
    spec = BY_KIND[kind]
    return {"tool": spec.name, "args": {spec.key: object_id}}


def _writes(*calls: Rule, after: Rule | None = None) -> Rule:
    """Of all tools that change anything, exactly these calls."""
    return only_calls(WRITES, *calls, after=after)
