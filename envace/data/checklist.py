"""Rules for a checklist: what the labels of a dialogue must be.

Flows in: a checklist as plain data, [variant][turn][item]. Flows out: its faults, and the items' rules
parsed. Invariant: a checklist without faults converts to items; only its first variant is looked at, since
only that is used. Nothing raises, however odd the data."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from envace.data import jsontext
from envace.data.faults import Fault, Reject, shape_fault
from envace.judge.rule_check import RuleError, check_rule
from envace.types import JSON

GROUNDING = "tool.content"  # what an item must look at for others to depend on it
FOCUS = (
    "assistant.tool_calls",
    "assistant.content.thinking",
    "assistant.content.user_visible_reply",
    GROUNDING,
)
EVIDENCE = (*FOCUS, "user.content")
TOLERANCE = 1e-6  # of a turn's sum of weights


class EvidenceShape(msgspec.Struct):
    turn: int
    step: int
    snippet: str | None = None


class ItemShape(msgspec.Struct):
    """An item as plain data must be."""

    id: str
    question: str
    pass_condition: str
    required_for_next_turn: bool
    weight: float
    failure_examples: list[str] | None = None
    dependence: list[str] | None = None
    evidence: list[EvidenceShape] | None = None
    extra_info: dict[str, JSON] | None = None


def first_variant(checklist: JSON) -> JSON:
    """The one variant that is used, None when there is none."""
    return checklist[0] if isinstance(checklist, list) and checklist else None


def checklist_faults(
    checklist: JSON, at: str, user_messages: int, rules: list[JSON] | None = None
) -> Iterator[Fault]:
    """Every fault of a checklist for a dialogue of so many user messages. `rules` gets each item's, None for
    none."""
    if checklist is None:
        yield Fault(Reject.MISSING_FIELD, at, "is missing")
        return
    if not isinstance(checklist, list):
        yield Fault(Reject.WRONG_TYPE, at, "must be a list")
        return
    turns = first_variant(checklist)
    if not turns:
        yield Fault(Reject.BAD_CHECKLIST, at, "holds no turn")
        return
    if fault := shape_fault(list[list[ItemShape]], turns, f"{at}[0]", Reject.BAD_CHECKLIST):
        yield fault
        turns = turns if isinstance(turns, list) else []
    else:
        for t, items in enumerate(turns):
            yield from turn_faults(items, f"{at}[0][{t}]", rules)
    if len(turns) > user_messages:
        words = f"{len(turns)} turns, but the dialogue has {user_messages} user message(s)"
        yield Fault(Reject.TURN_COUNT, f"{at}[0]", words)


def turn_faults(items: list[dict[str, JSON]], at: str, rules: list[JSON] | None = None) -> Iterator[Fault]:
    """Every fault of one turn's items, which have the right shape."""
    for k, item in enumerate(items):
        yield from _item_faults(item, f"{at}[{k}]", rules)
    total = sum(item["weight"] for item in items)
    if not abs(total - 1) <= TOLERANCE:
        yield Fault(Reject.BAD_WEIGHTS, at, f"weights sum to {total:g}, not 1")
    focus = {item["id"]: item.get("focus_on") for item in items}
    if len(focus) < len(items):
        yield Fault(Reject.BAD_CHECKLIST, at, "two items have one id")
    for k, item in enumerate(items):
        for other in item.get("dependence") or ():
            if other not in focus:
                words = f"{other!r} is no item of this turn"
            elif focus[other] != GROUNDING:
                words = f"{other!r} does not look at {GROUNDING}, so nothing can depend on it"
            else:
                continue
            yield Fault(Reject.BAD_CHECKLIST, f"{at}[{k}].dependence", words)
    if loop := _circle({item["id"]: item["dependence"] for item in items if item.get("dependence")}):
        yield Fault(Reject.BAD_CHECKLIST, at, f"items depend on each other in a circle: {loop}")


def _item_faults(item: dict[str, JSON], at: str, rules: list[JSON] | None) -> Iterator[Fault]:
    """What is wrong with one item; its rule, as data, goes to `rules`."""
    if item.get("focus_on") not in FOCUS:
        words = f"{item.get('focus_on')!r} is none of {', '.join(FOCUS)}"
        yield Fault(Reject.BAD_CHECKLIST, f"{at}.focus_on", words)
    if not 0 <= item["weight"] <= 1:
        yield Fault(Reject.BAD_WEIGHTS, f"{at}.weight", f"{item['weight']} is not between 0 and 1")
    for k, part in enumerate(item.get("evidence") or ()):
        for key in ("turn", "step"):
            if not 0 <= part[key] < 2**31:
                yield Fault(Reject.BAD_CHECKLIST, f"{at}.evidence[{k}].{key}", "is out of range")
        if part.get("from") not in EVIDENCE:
            words = f"{part.get('from')!r} is none of {', '.join(EVIDENCE)}"
            yield Fault(Reject.BAD_CHECKLIST, f"{at}.evidence[{k}].from", words)
    rule = (item.get("extra_info") or {}).get("rule")
    try:
        if rule is not None:  # a null in it may mean something, so none is taken for an absent key
            rule = jsontext.read_or_take(rule)
            check_rule(rule)
    except (RuleError, ValueError) as e:
        yield Fault(Reject.BAD_RULE, f"{at}.extra_info.rule", str(e))
        rule = None
    if rules is not None:
        rules.append(rule)


def _circle(needs: dict[str, list[str]]) -> str:
    """Ids of items that depend on each other in a circle, or on such items, in words; empty when none do."""
    left = dict(needs)
    while free := [i for i, others in left.items() if not any(o in left for o in others)]:
        for i in free:
            del left[i]
    return ", ".join(left)
