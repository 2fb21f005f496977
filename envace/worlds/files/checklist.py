"""The checklist of a turn in the files world, from its goal: what a perfect answer does, as items with rules.

Flows in: a goal (see `envace/worlds/files/expert.py`). Flows out: five items, weights summing to 1: look-up,
changes, reply, and two on the responses shown.
Invariant: no rule reads the hidden tree; each branch on it hangs on the response shown in the transcript, and
no item holds for an agent that looked nothing up.
"""

from __future__ import annotations

from envace.types import JSON, Item
from envace.worlds.files.expert import CHANGE, DONE, LOOK_UP, TOLD, Goal
from envace.worlds.files.tools import LIMIT, WRITES
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

RESPONSES = ("C3", "C4")  # the items on responses, which others depend on
# question and when it passes
LOOKED = ("Was everything the user asks about looked up?", "With the path and words the user gave.")
LOOKED_AT = (
    "Was the file looked up?",
    "The file the user means, found by its text where only that is given.",
)
UNCHANGED = ("Was it looked up without changing anything?", "A look-up and no change.")
FOUND = ("Does the reply tell what was found?", "The value shown, or the error.")
CHANGED = ("Was exactly the allowed change made?", "After the look-up, and only if the file allows it.")
TOLD_OUTCOME = ("Does the reply tell the outcome?", "What was done, or sorry and why not.")
ON_RECORD = (
    "Are recorded responses as recorded?",
    "Each is the record, unless a change came in between.",
)
BY_RULES = (
    "Do other responses follow the tools' rules?",
    "Each follows from the records and the calls before.",
)


def items(goal: Goal) -> tuple[Item, ...]:
    """The five items of one turn."""
    if goal["do"] in LOOK_UP:
        looks = [_call(LOOK_UP[goal["do"]], path=said(p)) for p in goal["files"]]
        return _read_items(looks, _each(goal, looks))
    if goal["do"] == "count":
        look = _call("list_dir", path=said(goal["dir"]))
        return _read_items([look], _answer(look, "count"))
    if goal["do"] == "find":
        return _read_items([_finder(goal)], _answer(_finder(goal), "file"))
    return _change_items(goal)


def said(text: str) -> Rule:
    """A value the user gave."""
    return {"user": text}


def _answer(look: Rule, field: str) -> Rule:
    """The reply has the field that was shown; or sorry and the reason."""
    return if_observed(look, [(FAILED, _sorry(seen(look, "error")))], says(seen(look, field), none=["sorry"]))


def _each(goal: Goal, looks: list[Rule]) -> Rule:
    """For every file, in the part of the reply about it: what was shown."""
    parts = []
    for path, look in zip(goal["files"], looks):
        place = {"about": path, "among": list(goal["files"])}
        told = {"kind": "says", **place, "all": [seen(look, TOLD[goal["do"]][1])], "none": ["error"]}
        wrong = {"kind": "says", **place, "all": ["error", seen(look, "error")]}
        parts.append(if_observed(look, [(FAILED, wrong)], told))
    return all_of(parts)


def _read_items(looks: list[Rule], reply: Rule) -> tuple[Item, ...]:
    looked = all_of([{"kind": "called", **look} for look in looks])
    return (
        item(0, 0.3, LOOKED, CALLS, looked),
        item(1, 0.1, UNCHANGED, CALLS, all_of([looked, _writes()]), dependence=RESPONSES),
        item(2, 0.4, FOUND, REPLY, reply, required=True, dependence=RESPONSES),
        *_grounding(),
    )


def _change_items(goal: Goal) -> tuple[Item, ...]:
    path: JSON = said(goal["file"]) if "file" in goal else seen(_finder(goal), "file")
    info = _call("file_info", path=path)
    target = {"to": said(goal["to"])} if "to" in goal else {}
    change = _call(CHANGE[goal["do"]], path=path, **target)
    looked: Rule = {"kind": "called", **info}
    acted, told = _acted(goal, info, change), _outcome(goal, info, change)
    if "file" not in goal:
        find = _finder(goal)
        looked = if_observed(find, [(FAILED, _writes())], looked)
        acted = if_observed(find, [(FAILED, _writes())], acted)
        told = if_observed(find, [(FAILED, _sorry(seen(find, "error")))], told)
    return (
        item(0, 0.2, LOOKED_AT, CALLS, looked),
        item(1, 0.3, CHANGED, CALLS, acted, required=True, dependence=RESPONSES),
        item(2, 0.3, TOLD_OUTCOME, REPLY, told, required=True, dependence=RESPONSES),
        *_grounding(),
    )


def _forbids(goal: Goal) -> Rule:
    """What file_info shows of a file that must not be changed."""
    return {"size": {"above": LIMIT}} if goal["do"] == "copy" else {"locked": True}


def _acted(goal: Goal, info: Rule, change: Rule) -> Rule:
    return if_observed(info, [(FAILED, _writes()), (_forbids(goal), _writes())], _writes(change, after=info))


def _outcome(goal: Goal, info: Rule, change: Rule) -> Rule:
    why: JSON = seen(info, "size") if goal["do"] == "copy" else "locked"
    done = says(DONE[goal["do"]], *([said(goal["to"])] if "to" in goal else []), none=["sorry"])
    outcome = if_observed(change, [(FAILED, _sorry(seen(change, "error")))], done)
    return if_observed(info, [(FAILED, _sorry(seen(info, "error"))), (_forbids(goal), _sorry(why))], outcome)


def _finder(goal: Goal) -> Rule:
    return _call("find_text", path=said(goal["dir"]), word=said(goal["word"]))


def _call(tool: str, **args: JSON) -> Rule:
    return {"tool": tool, "args": args}


def _sorry(*words: JSON) -> Rule:
    return says("sorry", *words)


def _writes(*calls: Rule, after: Rule | None = None) -> Rule:
    """Of all tools that change anything, exactly these calls."""
    return only_calls(WRITES, *calls, after=after)


def _grounding() -> tuple[Item, Item]:
    rule: Rule = {"kind": "grounded", "world": "files"}
    return (
        item(3, 0.1, ON_RECORD, RESPONSE, {**rule, "part": "records"}),
        item(4, 0.1, BY_RULES, RESPONSE, {**rule, "part": "rules"}),
    )
