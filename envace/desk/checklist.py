"""The checklist of a turn, from its goal: what a perfect answer does, as items with rules.

Flows in: a goal (see `envace/desk/expert.py`). Flows out: the items of the turn, weights summing to 1.
Invariant: no rule reads the hidden database; each branch on it hangs on the response shown in the transcript,
and no item holds for an agent that looked nothing up.
"""

from __future__ import annotations

from envace.desk.expert import NEEDS, TOOL_OF, Goal
from envace.desk.world import REFUND_LIMIT, STATUSES, WRITES
from envace.types import JSON, Item

Rule = dict[str, JSON]


def items(goal: Goal) -> tuple[Item, ...]:
    """The four items of one turn: look-up, changes, reply, grounding."""
    if goal["do"] == "status":
        lookups = [_lookup("get_order", order_id=said(i)) for i in goal["orders"]]
        return _read_items(goal, lookups, _each_status(goal["orders"]))
    if goal["do"] == "credit":
        call = _lookup("get_account", account_id=said(goal["account"]))
        credit = _seen(call, "credit")
        return _read_items(
            goal,
            [call],
            _if(
                call,
                [({"error": {"present": True}}, _says("sorry"))],
                {"kind": "says", "all": [credit], "none": ["sorry"]},
            ),
        )
    return _change_items(goal)


def said(object_id: str) -> Rule:
    """The id `#kite` as the word the user said."""
    return {"user": object_id.lstrip("#"), "prefix": "#"}


def _each_status(orders: list[str]) -> Rule:
    parts = []
    for i in orders:
        call = _lookup("get_order", order_id=said(i))
        place = {"about": i, "among": list(orders)}
        missing: Rule = {"kind": "says", **place, "all": ["not found"]}
        told: Rule = {
            "kind": "says",
            **place,
            "one_of": {"words": list(STATUSES), "is": _seen(call, "status")},
        }
        parts.append(_if(call, [({"error": {"present": True}}, missing)], told))
    return {"kind": "all", "rules": parts}


def _read_items(goal: Goal, lookups: list[Rule], reply: Rule) -> tuple[Item, ...]:
    looked = _all([{"kind": "called", **c} for c in lookups])
    return (
        _item(
            0,
            0.35,
            "Was everything the user asks about looked up?",
            "A look-up with the id the user gave, with its # in front.",
            CALLS,
            looked,
        ),
        _item(
            1,
            0.1,
            "Was it looked up without changing anything?",
            "A look-up and no call that changes an order.",
            CALLS,
            _all([looked, _writes()]),
            after=True,
        ),
        _item(
            2,
            0.35,
            "Does the reply tell what was found?",
            "The reply has the value shown, or says it was not found.",
            REPLY,
            reply,
            required=True,
            after=True,
        ),
        _grounding(0.2),
    )


def _change_items(goal: Goal) -> tuple[Item, ...]:
    account = _lookup("get_account", account_id=said(goal["account"])) if "account" in goal else None
    order_id = _seen(account, "order") if account else said(goal["order"])
    order = _lookup("get_order", order_id=order_id)
    change = {
        "tool": TOOL_OF[goal["do"]],
        "args": {"order_id": order_id, **({"city": {"user": goal["city"]}} if goal["do"] == "move" else {})},
    }
    looked, acted, told = {"kind": "called", **order}, _acted(goal, order, change), _told(goal, order, change)
    if account:
        none = {"order": {"present": False}}
        looked = _if(account, [(none, _writes())], looked)
        acted = _if(account, [(none, _writes())], acted)
        told = _if(account, [(none, _says("sorry"))], told)
    return (
        _item(
            0,
            0.25,
            "Was the order looked up?",
            "A look-up of the order the user means, found through the account where only that is given.",
            CALLS,
            looked,
        ),
        _item(
            1,
            0.3,
            "Was exactly the allowed change made?",
            f"After the look-up: the change if the order is {NEEDS[goal['do']]} and within the limit, else no change at all.",
            CALLS,
            acted,
            required=True,
            after=True,
        ),
        _item(
            2,
            0.25,
            "Does the reply tell the outcome?",
            "What was done, or sorry and why not.",
            REPLY,
            told,
            required=True,
            after=True,
        ),
        _grounding(0.2),
    )


def _acted(goal: Goal, order: Rule, change: Rule) -> Rule:
    fits = {"error": {"present": False}, "status": NEEDS[goal["do"]]}
    over = [({**fits, "total": {"above": REFUND_LIMIT}}, _writes())] if goal["do"] == "refund" else []
    return _if(order, [*over, (fits, _writes(change, after=order))], _writes())


def _told(goal: Goal, order: Rule, change: Rule) -> Rule:
    fits = {"error": {"present": False}, "status": NEEDS[goal["do"]]}
    over = [({**fits, "total": {"above": REFUND_LIMIT}}, _says("sorry"))] if goal["do"] == "refund" else []
    word = {"cancel": "cancelled", "refund": _seen(change, "refund"), "move": {"user": goal.get("city", "")}}[
        goal["do"]
    ]
    done: Rule = {"kind": "says", "all": [word], "none": ["sorry"]}
    outcome = _if(change, [({"error": {"present": True}}, _says("sorry"))], done)
    wrong_state: Rule = {
        "kind": "says",
        "all": ["sorry"],
        "one_of": {"words": list(STATUSES), "is": _seen(order, "status")},
    }
    return _if(order, [({"error": {"present": True}}, _says("sorry")), *over, (fits, outcome)], wrong_state)


def _lookup(tool: str, **args: JSON) -> Rule:
    return {"tool": tool, "args": args}


def _seen(call: Rule, path: str) -> Rule:
    return {"seen": {**call, "path": path}}


def _if(call: Rule, cases: list[tuple[Rule, Rule]], otherwise: Rule) -> Rule:
    return {
        "kind": "if_observed",
        **call,
        "cases": [{"where": w, "then": t} for w, t in cases],
        "else": otherwise,
    }


def _all(rules: list[Rule]) -> Rule:
    return rules[0] if len(rules) == 1 else {"kind": "all", "rules": rules}


def _says(*words: JSON) -> Rule:
    return {"kind": "says", "all": list(words)}


def _writes(*calls: Rule, after: Rule | None = None) -> Rule:
    return {
        "kind": "only_calls",
        "tools": list(WRITES),
        "calls": list(calls),
        **({"after": after} if after else {}),
    }


CALLS, REPLY, RESPONSE = "assistant.tool_calls", "assistant.content.user_visible_reply", "tool.content"


def _item(
    k: int,
    weight: float,
    question: str,
    passes: str,
    focus: str,
    rule: Rule,
    *,
    required: bool = False,
    after: bool = False,
) -> Item:
    return Item(
        id=f"C{k}", question=question, pass_condition=passes, focus_on=focus, weight=weight, required_for_next_turn=required,
        dependence=("C3",) if after else (), rule=rule,
    )  # fmt: skip


def _grounding(weight: float) -> Item:
    passes = "Each response equals the record of that call, or follows from the records by the desk's rules."
    return _item(
        3,
        weight,
        "Are the responses those of the desk?",
        passes,
        RESPONSE,
        {"kind": "grounded", "world": "desk"},
    )
