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

RESPONSES = ("C3", "C4")
"""The items on responses, which others depend on."""
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
ON_RECORD = ("Are recorded responses as recorded?", "Each is the record, unless a change came in between.")
BY_RULES = (
    "Do other responses follow the tools' rules?",
    "Each follows from the records and the calls before.",
)


def items(goal: Goal) -> tuple[Item, ...]:
    """The five items of one turn."""
    grounded: Rule = {"kind": "grounded", "world": "files"}
    return (
        *(_change_items(goal) if goal["do"] in CHANGE else _read_items(goal)),
        item(3, 0.1, ON_RECORD, RESPONSE, {**grounded, "part": "records"}),
        item(4, 0.1, BY_RULES, RESPONSE, {**grounded, "part": "rules"}),
    )


def said(text: str) -> Rule:
    """A value the user gave."""
    return {"user": text}


def _read_items(goal: Goal) -> tuple[Item, ...]:
    if goal["do"] in LOOK_UP:
        looks = [_call(LOOK_UP[goal["do"]], path=said(p)) for p in goal["files"]]
        reply = _each(goal, looks)
    else:
        look = _finder(goal) if goal["do"] == "find" else _call("list_dir", path=said(goal["dir"]))
        told = says(seen(look, "file" if goal["do"] == "find" else "count"), none=["sorry"])
        looks, reply = [look], if_observed(look, [(FAILED, says("sorry", seen(look, "error")))], told)
    looked = all_of([{"kind": "called", **look} for look in looks])
    return (
        item(0, 0.3, LOOKED, CALLS, looked),
        item(1, 0.1, UNCHANGED, CALLS, all_of([looked, only_calls(WRITES)]), dependence=RESPONSES),
        item(2, 0.4, FOUND, REPLY, reply, required=True, dependence=RESPONSES),
    )


def _each(goal: Goal, looks: list[Rule]) -> Rule:
    """For every file, in the part of the reply about it: what was shown."""
    parts = []
    for path, look in zip(goal["files"], looks):
        place = {"about": path, "among": list(goal["files"])}
        told = {"kind": "says", **place, "all": [seen(look, TOLD[goal["do"]][1])], "none": ["error"]}
        wrong = {"kind": "says", **place, "all": ["error", seen(look, "error")]}
        parts.append(if_observed(look, [(FAILED, wrong)], told))
    return all_of(parts)


def _change_items(goal: Goal) -> tuple[Item, ...]:
    do, find, nothing = goal["do"], None if "file" in goal else _finder(goal), only_calls(WRITES)
    path: JSON = seen(find, "file") if find else said(goal["file"])
    target = {"to": said(goal["to"])} if "to" in goal else {}
    info, change = _call("file_info", path=path), _call(CHANGE[do], path=path, **target)
    # what file_info shows of a file that must not be changed, and the word for it
    forbids: Rule = {"size": {"above": LIMIT}} if do == "copy" else {"locked": True}
    why: JSON = seen(info, "size") if do == "copy" else "locked"

    looked: Rule = {"kind": "called", **info}
    made = only_calls(WRITES, change, after=info)
    acted = if_observed(info, [(FAILED, nothing), (forbids, nothing)], made)
    done = says(DONE[do], *target.values(), none=["sorry"])
    outcome = if_observed(change, [(FAILED, says("sorry", seen(change, "error")))], done)
    refused = [(FAILED, says("sorry", seen(info, "error"))), (forbids, says("sorry", why))]
    told = if_observed(info, refused, outcome)
    if find:
        looked = if_observed(find, [(FAILED, nothing)], looked)
        acted = if_observed(find, [(FAILED, nothing)], acted)
        told = if_observed(find, [(FAILED, says("sorry", seen(find, "error")))], told)
    return (
        item(0, 0.2, LOOKED_AT, CALLS, looked),
        item(1, 0.3, CHANGED, CALLS, acted, required=True, dependence=RESPONSES),
        item(2, 0.3, TOLD_OUTCOME, REPLY, told, required=True, dependence=RESPONSES),
    )


def _finder(goal: Goal) -> Rule:
    return _call("find_text", path=said(goal["dir"]), word=said(goal["word"]))


def _call(tool: str, **args: JSON) -> Rule:
    return {"tool": tool, "args": args}
