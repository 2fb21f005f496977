"""Checklist rules: predicates over the transcript, written as data and evaluated without any `eval`.

A rule reads the transcript only (grounding also reads the task's records), so a rehearsal that
differs from the hidden truth does not punish correct acting. A rule that is missing or broken anywhere, even
in a branch not taken, gives UNSCORED with a reason and never NO.

The language. A rule is an object with `kind`; one example each:

called      a call with exactly these arguments was made in this turn
    {"kind": "called", "tool": "get_order", "args": {"order_id": {"user": "kite", "prefix": "#"}}}
only_calls  of these tools, exactly these calls were made in this turn, each after the response of `after` was
            shown (optional); a call repeated because its response was an error counts once
    {"kind": "only_calls", "tools": ["cancel_order", "refund_order"], "calls": [{"tool": "cancel_order",
     "args": {"order_id": "#kite"}}], "after": {"tool": "get_order", "args": {"order_id": "#kite"}}}
says        the reply that closes the turn has every value of `all` and none of `none`, as whole words; of
            `one_of.words` it has `one_of.is` and no other. With `about`, only the part of the reply between
            that value and the next one of `among` counts. No reply: no.
    {"kind": "says", "about": "#kite", "among": ["#kite", "#dune"], "none": ["sorry"],
     "one_of": {"words": ["pending", "shipped"], "is": {"seen": {"tool": "get_order",
                "args": {"order_id": "#kite"}, "path": "status"}}}}
if_observed the first case that fits the first response shown for this call in this turn decides; no response
            shown, or no case fits and no `else`: no. A case compares fields: a constant, {"not": constant},
            {"above": number} or {"present": true|false}.
    {"kind": "if_observed", "tool": "get_order", "args": {"order_id": "#kite"},
     "cases": [{"where": {"status": "pending", "total": {"above": 80}},
                "then": {"kind": "says", "all": ["ok"]}}],
     "else": {"kind": "says", "all": ["sorry"]}}
all, any    every one, or at least one, of the rules holds
    {"kind": "all", "rules": [{"kind": "called", "tool": "get_order", "args": {"order_id": "#kite"}}]}
grounded    at least one response was shown in this turn, and each to a call that matches a record (of this
            turn or an earlier one) equals such a record. With `world`, each is what that world answers,
            rebuilt from the records with every call of the transcript replayed in order, so that a record
            which a change has made stale binds nothing; `part` keeps the judgement to calls that match a
            record ("records") or to those that match none ("rules"). A call the tools' schemas forbid is
            refused, in whatever words.
    {"kind": "grounded"}        {"kind": "grounded", "world": "desk", "part": "records"}

A value is a constant (text, number, true/false, null); {"user": "kite", "prefix": "#"}, a word the user has
said, with an optional prefix; or {"seen": {"tool":, "args":, "path": "status"}}, a field (dots descend) of
the first response shown for that call, looked for in this turn and then in earlier ones. A value never shown
equals nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envace.chat.contract import is_error
from envace.chat.transcript import Exchange, exchanges
from envace.chat.validate import validate_call
from envace.errors import DataError
from envace.judge.rule_check import RuleError, check_rule
from envace.types import JSON, Answer, Item, Message, Task, ToolCall, Verdict
from envace.worlds import registry as worlds

MISSING: JSON = object()
"""Stands for a value that was never shown; equal to nothing, sayable by no reply."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rule may look at."""

    task: Task
    turn: int
    messages: tuple[Message, ...]
    """Up to and including this turn."""
    exchanges: tuple[Exchange, ...]

    @property
    def now(self) -> list[Exchange]:
        return [e for e in self.exchanges if e.turn == self.turn]


def judge_item(item: Item, task: Task, turn: int, messages: Sequence[Message]) -> Verdict:
    """The verdict of one item on one turn of a transcript. Pure; never raises on a bad rule."""
    upto = tuple(m for m in messages if m.turn <= turn)
    answer, reason = Answer.UNSCORED, "rule_missing"
    if item.rule is not None:
        try:
            check_rule(item.rule)
            held = _holds(item.rule, Scene(task, turn, upto, tuple(exchanges(upto))))
            answer, reason = Answer.YES if held else Answer.NO, ""
        except RuleError as e:
            reason = f"rule_invalid: {e}"
    return Verdict(item_id=item.id, turn=turn, answer=answer, reason=reason)


def _holds(rule: dict[str, JSON], scene: Scene) -> bool:
    """`all` and `any` combine rules; `KINDS` has the others."""
    if rule["kind"] in ("all", "any"):
        each = (_holds(r, scene) for r in rule["rules"])
        return all(each) if rule["kind"] == "all" else any(each)
    return KINDS[rule["kind"]](rule, scene)


def _called(rule: dict[str, JSON], scene: Scene) -> bool:
    return any(_matches(rule, e.call, scene) for e in scene.now)


def _only_calls(rule: dict[str, JSON], scene: Scene) -> bool:
    made = [e for e in scene.now if e.call.name in rule["tools"]]
    later = [[x.call for x in made[i + 1 :]] for i in range(len(made))]
    made = [
        e
        for e, calls in zip(made, later)
        if not (is_error(e.content) and any(_same(e.call, c) for c in calls))
    ]
    wanted = list(rule["calls"])
    for e in made:
        hit = next((w for w in wanted if _matches(w, e.call, scene)), None)
        if hit is None:
            return False
        wanted.remove(hit)
    if wanted or "after" not in rule:
        return not wanted
    first = _first(rule["after"], scene, scene.now)
    return first is not None and first.shown is not None and all(e.asked > first.shown for e in made)


def _says(rule: dict[str, JSON], scene: Scene) -> bool:
    now = [m for m in scene.messages if m.turn == scene.turn]
    replies = [m.content for m in now if m.role == "assistant" and not m.calls]
    if not replies:
        return False
    reply = replies[-1]
    if "about" in rule:
        reply = _part(reply, _value(rule["about"], scene), [_value(v, scene) for v in rule.get("among", [])])
    if "one_of" in rule:
        said = _value(rule["one_of"]["is"], scene)
        others = [w for w in rule["one_of"]["words"] if not _equal(w, said)]
        if not _has(reply, said) or any(_has(reply, w) for w in others):
            return False
    every = all(_has(reply, _value(v, scene)) for v in rule.get("all", []))
    return every and not any(_has(reply, _value(v, scene)) for v in rule.get("none", []))


def _if_observed(rule: dict[str, JSON], scene: Scene) -> bool:
    first = _first(rule, scene, scene.now)
    if first is None:
        return False
    for case in rule["cases"]:
        if all(_fits(_field(first.content, path), test) for path, test in case["where"].items()):
            return _holds(case["then"], scene)
    return _holds(rule["else"], scene) if "else" in rule else False


def _grounded(rule: dict[str, JSON], scene: Scene) -> bool:
    shown = [e for e in scene.now if e.shown is not None]
    if not shown:
        return False
    records = [r for r in scene.task.records if r.turn <= scene.turn]
    known = [[r.result for r in records if _same(r.call, e.call)] for e in shown]
    if "world" not in rule:
        return all(any(_equal(e.content, k) for k in ks) for e, ks in zip(shown, known) if ks)
    if "part" in rule:
        shown = [e for e, ks in zip(shown, known) if bool(ks) == (rule["part"] == "records")]
    held = _replayed(rule["world"], scene)
    return all(held[e.shown] for e in shown)


def _replayed(kind: str, scene: Scene) -> dict[int | None, bool]:
    """Message index of each response shown so far -> whether a world rebuilt from the records answers so."""
    cls = worlds.world_class(kind)
    if not hasattr(cls, "from_records"):
        raise RuleError(f"a world of kind {kind!r} cannot be rebuilt: its class has no from_records")
    held: dict[int | None, bool] = {}
    try:
        world = cls.from_records(scene.task.records)
    except DataError as error:
        raise RuleError(f"the records make no world of kind {kind!r}: {error}") from None
    for e in scene.exchanges:
        if e.shown is None:
            continue
        try:
            forbidden = scene.task.tools and validate_call(e.call, scene.task.tools)[0] is not None
        except DataError as error:
            raise RuleError(str(error)) from None
        truth = None if forbidden else world.call(e.call).content  # a forbidden one never reaches a world
        malformed = isinstance(truth, dict) and truth.get("error") in getattr(cls, "MALFORMED", ())
        # a validator in front may have refused it in its own words
        held[e.shown] = is_error(e.content) if forbidden or malformed else _equal(e.content, truth)
    return held


def _value(value: JSON, scene: Scene) -> JSON:
    if not isinstance(value, dict):
        return value
    if "user" in value:
        if not any(m.role == "user" and _has(m.content, value["user"]) for m in scene.messages):
            raise RuleError(f"no user message says {value['user']!r}")
        return value.get("prefix", "") + value["user"]
    seen = value["seen"]
    first = _first(seen, scene, scene.now) or _first(seen, scene, scene.exchanges)
    return MISSING if first is None else _field(first.content, seen["path"])


def _first(pattern: dict[str, JSON], scene: Scene, among: Sequence[Exchange]) -> Exchange | None:
    return next((e for e in among if e.shown is not None and _matches(pattern, e.call, scene)), None)


def _matches(pattern: dict[str, JSON], call: ToolCall, scene: Scene) -> bool:
    given, wanted = call.arguments, pattern["args"]
    if call.name != pattern["tool"] or not isinstance(given, dict) or set(given) != set(wanted):
        return False
    return all(_equal(given[k], _value(v, scene)) for k, v in wanted.items())


def _field(content: JSON, path: str) -> JSON:
    for key in path.split("."):
        if not isinstance(content, dict) or key not in content:
            return MISSING
        content = content[key]
    return content


def _fits(found: JSON, test: JSON) -> bool:
    if not isinstance(test, dict):
        return _equal(found, test)
    if "present" in test:
        return (found is not MISSING) is test["present"]
    if "not" in test:
        return not _equal(found, test["not"])
    return isinstance(found, (int, float)) and not isinstance(found, bool) and bool(found > test["above"])


def _equal(a: JSON, b: JSON) -> bool:
    if a is MISSING or b is MISSING:
        return False
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _same(a: ToolCall, b: ToolCall) -> bool:
    return a.name == b.name and _equal(a.arguments, b.arguments)


def _word(value: JSON) -> re.Pattern[str] | None:
    """A pattern for the value as a whole word; None when no reply can say it."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value).strip().lstrip("#")
    return re.compile(rf"(?<![\w.]){re.escape(text)}(?!\w|\.\d)", re.IGNORECASE) if text else None


def _has(reply: str, value: JSON) -> bool:
    word = _word(value)
    return word is not None and word.search(reply) is not None


def _part(reply: str, about: JSON, among: Sequence[JSON]) -> str:
    """From `about` to the next other value of `among`; empty when the reply does not name it."""
    word = _word(about)
    start = word.search(reply) if word else None
    if start is None:
        return ""
    others = [p.search(reply, start.end()) for v in among if not _equal(v, about) and (p := _word(v))]
    return reply[start.start() : min((m.start() for m in others if m), default=len(reply))]


KINDS: dict[str, Callable[[dict[str, JSON], Scene], bool]] = {
    "called": _called,
    "only_calls": _only_calls,
    "says": _says,
    "if_observed": _if_observed,
    "grounded": _grounded,
}
