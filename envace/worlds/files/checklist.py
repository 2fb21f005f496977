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

Rule = dict[str, JSON]
FAILED: Rule = {"error": {"present": True}}


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
    return _if(look, [(FAILED, _sorry(_seen(look, "error")))], _says(_seen(look, field), none=["sorry"]))


def _each(goal: Goal, looks: list[Rule]) -> Rule:
    """For every file, in the part of the reply about it: what was shown."""
    parts = []
    for path, look in zip(goal["files"], looks):
        place = {"about": path, "among": list(goal["files"])}
        told = {"kind": "says", **place, "all": [_seen(look, TOLD[goal["do"]][1])], "none": ["error"]}
        wrong = {"kind": "says", **place, "all": ["error", _seen(look, "error")]}
        parts.append(_if(look, [(FAILED, wrong)], told))
    return _all(parts)


def _read_items(looks: list[Rule], reply: Rule) -> tuple[Item, ...]:
    looked = _all([{"kind": "called", **look} for look in looks])
    return (
        _item(
            0,
            0.3,
            "Was everything the user asks about looked up?",
            "With the path and words the user gave.",
            looked,
        ),
        _item(
            1,
            0.1,
            "Was it looked up without changing anything?",
            "A look-up and no change.",
            _all([looked, _writes()]),
        ),
        _item(
            2,
            0.4,
            "Does the reply tell what was found?",
            "The value shown, or the error.",
            reply,
            focus=REPLY,
            required=True,
        ),
        *_grounding(),
    )


def _change_items(goal: Goal) -> tuple[Item, ...]:
    path: JSON = said(goal["file"]) if "file" in goal else _seen(_finder(goal), "file")
    info = _call("file_info", path=path)
    target = {"to": said(goal["to"])} if "to" in goal else {}
    change = _call(CHANGE[goal["do"]], path=path, **target)
    looked: Rule = {"kind": "called", **info}
    acted, told = _acted(goal, info, change), _outcome(goal, info, change)
    if "file" not in goal:
        find = _finder(goal)
        looked = _if(find, [(FAILED, _writes())], looked)
        acted = _if(find, [(FAILED, _writes())], acted)
        told = _if(find, [(FAILED, _sorry(_seen(find, "error")))], told)
    return (
        _item(
            0,
            0.2,
            "Was the file looked up?",
            "The file the user means, found by its text where only that is given.",
            looked,
        ),
        _item(
            1,
            0.3,
            "Was exactly the allowed change made?",
            "After the look-up, and only if the file allows it.",
            acted,
            required=True,
        ),
        _item(
            2,
            0.3,
            "Does the reply tell the outcome?",
            "What was done, or sorry and why not.",
            told,
            focus=REPLY,
            required=True,
        ),
        *_grounding(),
    )


def _forbids(goal: Goal) -> Rule:
    """What file_info shows of a file that must not be changed."""
    return {"size": {"above": LIMIT}} if goal["do"] == "copy" else {"locked": True}


def _acted(goal: Goal, info: Rule, change: Rule) -> Rule:
    return _if(info, [(FAILED, _writes()), (_forbids(goal), _writes())], _writes(change, after=info))


def _outcome(goal: Goal, info: Rule, change: Rule) -> Rule:
    why: JSON = _seen(info, "size") if goal["do"] == "copy" else "locked"
    done = _says(DONE[goal["do"]], *([said(goal["to"])] if "to" in goal else []), none=["sorry"])
    outcome = _if(change, [(FAILED, _sorry(_seen(change, "error")))], done)
    return _if(info, [(FAILED, _sorry(_seen(info, "error"))), (_forbids(goal), _sorry(why))], outcome)


def _finder(goal: Goal) -> Rule:
    return _call("find_text", path=said(goal["dir"]), word=said(goal["word"]))


# --- parts of rules -------------------------------------------------------------------------------


def _call(tool: str, **args: JSON) -> Rule:
    return {"tool": tool, "args": args}


def _seen(call: Rule, path: str) -> Rule:
    return {"seen": {**call, "path": path}}


def _if(call: Rule, cases: list[tuple[Rule, Rule]], otherwise: Rule) -> Rule:
    shown = [{"where": w, "then": t} for w, t in cases]
    return {"kind": "if_observed", **call, "cases": shown, "else": otherwise}


def _all(rules: list[Rule]) -> Rule:
    return rules[0] if len(rules) == 1 else {"kind": "all", "rules": rules}


def _says(*words: JSON, none: list[JSON]) -> Rule:
    return {"kind": "says", "all": list(words), "none": none}


def _sorry(*words: JSON) -> Rule:
    return {"kind": "says", "all": ["sorry", *words]}


def _writes(*calls: Rule, after: Rule | None = None) -> Rule:
    own = {"after": after} if after else {}
    return {"kind": "only_calls", "tools": list(WRITES), "calls": list(calls), **own}


CALLS, REPLY, RESPONSE = "assistant.tool_calls", "assistant.content.user_visible_reply", "tool.content"


def _item(
    k: int,
    weight: float,
    question: str,
    passes: str,
    rule: Rule,
    *,
    focus: str = CALLS,
    required: bool = False,
) -> Item:
    after = ("C3", "C4") if 0 < k < 3 else ()
    return Item(
        id=f"C{k}",
        question=question,
        pass_condition=passes,
        focus_on=focus,
        weight=weight,
        required_for_next_turn=required,
        dependence=after,
        rule=rule,
    )


def _grounding() -> tuple[Item, Item]:
    rule: Rule = {"kind": "grounded", "world": "files"}
    return (
        _item(
            3,
            0.1,
            "Are recorded responses as recorded?",
            "Each is the record, unless a change came in between.",
            {**rule, "part": "records"},
            focus=RESPONSE,
        ),
        _item(
            4,
            0.1,
            "Do other responses follow the tools' rules?",
            "Each follows from the records and the calls before.",
            {**rule, "part": "rules"},
            focus=RESPONSE,
        ),
    )
