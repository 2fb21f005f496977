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

Rule = dict[str, JSON]
CALLS, REPLY, RESPONSE = "assistant.tool_calls", "assistant.content.user_visible_reply", "tool.content"
MISSING = {"error": {"present": True}}


def items(goal: Goal) -> tuple[Item, ...]:
    """Look-up, changes, reply, and two on the responses: those on record, those that are not."""
    looked, acted, told = _look_rules(goal) if goal["do"] == "look" else _change_rules(goal)
    changes = goal["do"] != "look"
    asked = (
        f"the change if the {kind_of(goal)} is {SPECS[goal['do']].needs} and the desk may, else no change"
        if changes
        else "no change at all"
    )
    return (
        _item(
            0,
            0.2,
            "Was everything the user asks about looked up?",
            "A look-up with the id the user gave, or the one its account shows, with its # in front.",
            CALLS,
            looked,
        ),
        _item(
            1,
            0.25,
            "Was exactly the right change made?",
            f"After the look-up: {asked}.",
            CALLS,
            acted,
            required=changes,
        ),
        _item(
            2,
            0.25,
            "Does the reply tell the outcome?",
            "What was found or done, with the values shown; sorry and why not, where it could not be done.",
            REPLY,
            told,
            required=True,
        ),
        _grounding(3, 0.2, "records", "Each response to a call on record equals what the desk would answer."),
        _grounding(4, 0.1, "rules", "Each other response follows from the records by the desk's rules."),
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
    return account, [(kind, None, _lookup(kind, _seen(account, kind)))]


def _through(account: Rule | None, kind: str, without: Rule, rule: Rule) -> Rule:
    """`rule` where the account shows such an object, else `without`."""
    return _if(account, [({kind: {"present": False}}, without)], rule) if account else rule


def _look_rules(goal: Goal) -> tuple[Rule, Rule, Rule]:
    account, objects = _objects(goal)
    names = [i for _, i, _ in objects]
    looked = _all([{"kind": "called", **call} for _, _, call in objects])
    told = _all([_tell(kind, i, call, names) for kind, i, call in objects])
    kind = objects[0][0]
    looked = _through(account, kind, _writes(), looked)
    return looked, _all([looked, _writes()]), _through(account, kind, _says("sorry"), told)


def _tell(kind: str, object_id: str | None, call: Rule, among: list[str | None]) -> Rule:
    """The reply tells the fields of one object; where several are told, in the part about it."""
    place = {"about": object_id, "among": among} if len(among) > 1 else {}
    fields = [_value(call, kind, f, place) for f in LOOKS[kind][0]]
    return _if(call, [(MISSING, {"kind": "says", **place, "all": ["not found"]})], _all(fields))


def _change_rules(goal: Goal) -> tuple[Rule, Rule, Rule]:
    spec, change = SPECS[goal["do"]], CHANGES[goal["do"]]
    account, [(kind, _, look)] = _objects(goal)
    made = {"tool": spec.name, "args": {**look["args"], **_argument(goal)}}
    fits: Rule = {"error": {"present": False}, spec.state: spec.needs}
    over: list[tuple[Rule, Rule]] = []
    if change.limit:
        field, most = change.limit
        over = [({**fits, field: {"above": most}}, _all([_says("sorry"), _value(look, kind, field)]))]
    acted = _if(
        look, [*[(where, _writes()) for where, _ in over], (fits, _writes(made, after=look))], _writes()
    )
    wrong = {
        "kind": "says",
        "all": ["sorry"],
        "one_of": {"words": list(STATES[kind]), "is": _seen(look, spec.state)},
    }
    told = _if(
        look, [(MISSING, _says("sorry", "not found")), *over, (fits, _outcome(goal, look, made))], wrong
    )
    nothing = _writes()
    looked = _through(account, kind, nothing, {"kind": "called", **look})
    allowed, outcome = (nothing, acted), (_says("sorry"), told)
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
    return _if(made, [(MISSING, _all([_says("sorry"), kept]))], _all([done, was]))


def _value(look: Rule, kind: str, field: str, place: Rule | None = None, but: JSON = None) -> Rule:
    """The reply has the value shown for a field and no other value of that field, leaving out `but`."""
    words = [w for w in said_words(field, kind) if w != but]
    is_ = _seen(look, field)
    if not words:
        return {"kind": "says", **(place or {}), "all": [is_]}
    return {"kind": "says", **(place or {}), "one_of": {"words": words, "is": is_}}


def _lookup(kind: str, object_id: JSON) -> Rule:
    spec = BY_KIND[kind]
    return {"tool": spec.name, "args": {spec.key: object_id}}


def _seen(call: Rule, path: str) -> Rule:
    return {"seen": {**call, "path": path}}


def _if(call: Rule, cases: list[tuple[Rule, Rule]], otherwise: Rule) -> Rule:
    ruled = [{"where": where, "then": then} for where, then in cases]
    return {"kind": "if_observed", **call, "cases": ruled, "else": otherwise}


def _all(rules: list[Rule]) -> Rule:
    return rules[0] if len(rules) == 1 else {"kind": "all", "rules": rules}


def _says(*words: JSON) -> Rule:
    return {"kind": "says", "all": list(words)}


def _writes(*calls: Rule, after: Rule | None = None) -> Rule:
    """Of all tools that change anything, exactly these calls."""
    order = {"after": after} if after else {}
    return {"kind": "only_calls", "tools": list(WRITES), "calls": list(calls), **order}


def _item(
    k: int, weight: float, question: str, passes: str, focus: str, rule: Rule, *, required: bool = False
) -> Item:
    return Item(
        id=f"C{k}",
        question=question,
        pass_condition=passes,
        focus_on=focus,
        weight=weight,
        required_for_next_turn=required,
        dependence=(),
        rule=rule,
    )


def _grounding(k: int, weight: float, part: str, passes: str) -> Item:
    rule = {"kind": "grounded", "world": "desk", "part": part}
    return _item(k, weight, "Are the responses those of the desk?", passes, RESPONSE, rule)
