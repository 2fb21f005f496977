"""Parts of checklists that the embedded worlds share: rules (see `envace/judge/rules.py`) and items."""

from __future__ import annotations

from envace.types import JSON, Item

Rule = dict[str, JSON]
CALLS, REPLY, RESPONSE = "assistant.tool_calls", "assistant.content.user_visible_reply", "tool.content"
FAILED: Rule = {"error": {"present": True}}  # a response that is a refusal


def seen(call: Rule, path: str) -> Rule:
    """A value: a field of the response shown for a call."""
    return {"seen": {**call, "path": path}}


def if_observed(call: Rule, cases: list[tuple[Rule, Rule]], otherwise: Rule) -> Rule:
    """The rule of the first (fields, rule) that fits the response shown for a call."""
    ruled = [{"where": where, "then": then} for where, then in cases]
    return {"kind": "if_observed", **call, "cases": ruled, "else": otherwise}


def all_of(rules: list[Rule]) -> Rule:
    """Every one of the rules."""
    return rules[0] if len(rules) == 1 else {"kind": "all", "rules": rules}


def says(*words: JSON, none: list[JSON] | None = None) -> Rule:
    """The reply has all of the words, and none of `none`."""
    return {"kind": "says", "all": list(words), **({} if none is None else {"none": none})}


def only_calls(tools: tuple[str, ...], *calls: Rule, after: Rule | None = None) -> Rule:
    """Of these tools, exactly these calls."""
    order = {"after": after} if after else {}
    return {"kind": "only_calls", "tools": list(tools), "calls": list(calls), **order}


def item(
    k: int,
    weight: float,
    text: tuple[str, str],
    focus: str,
    rule: Rule,
    *,
    required: bool = False,
    dependence: tuple[str, ...] = (),
) -> Item:
    """Item number k; `text` is its question and when it passes."""
    question, passes = text
    return Item(
        id=f"C{k}",
        question=question,
        pass_condition=passes,
        focus_on=focus,
        weight=weight,
        required_for_next_turn=required,
        dependence=dependence,
        rule=rule,
    )
