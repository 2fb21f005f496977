"""Whether a rule is in the rule language (see `envace/judge/rules.py` for what rules mean).

Flows in: plain data that claims to be a rule. Flows out: nothing, or RuleError naming the first part that is wrong.
Invariant: a rule that passes can be evaluated without further type checks; no data, however odd, raises
anything but RuleError.
"""

from __future__ import annotations

from collections.abc import Callable

from envace.types import JSON
from envace.worlds import registry as worlds

MAX_DEPTH = 24  # rules and values inside each other
GROUNDED_PARTS = ("records", "rules")

Check = Callable[[JSON, str, int], None]  # value, where it stands, depth


class RuleError(ValueError):
    """The rule itself is broken; the message says where."""


def check_rule(rule: JSON, where: str = "rule", depth: int = 0) -> None:
    """Raise RuleError at the first part of a rule that is not in the language."""
    if depth > MAX_DEPTH:
        raise RuleError(f"{where} is nested more than {MAX_DEPTH} deep")
    kind = rule.get("kind") if isinstance(rule, dict) else None
    if not isinstance(kind, str) or kind not in SHAPES:
        raise RuleError(f"{where}.kind must be one of {', '.join(SHAPES)}, not {kind!r}")
    needs, optional = SHAPES[kind]
    _keys(rule, {"kind", *needs}, optional, where)
    for key, value in rule.items():
        if key != "kind":
            PARTS[key](value, f"{where}.{key}", depth + 1)
    if "part" in rule and "world" not in rule:
        raise RuleError(f"{where}.world is missing: only with a world can a part of the responses be judged")


def _keys(value: JSON, needs: set[str], optional: set[str], where: str) -> None:
    if not isinstance(value, dict):
        raise RuleError(f"{where} must be an object")
    for key in sorted(needs - set(value)):
        raise RuleError(f"{where}.{key} is missing")
    for key in sorted(set(value) - needs - optional):
        raise RuleError(f"{where}.{key} is not known")


def _check_text(value: JSON, where: str, depth: int) -> None:
    if not isinstance(value, str) or not value:
        raise RuleError(f"{where} must be non-empty text")


def _list_of(check: Check) -> Check:
    def check_list(value: JSON, where: str, depth: int) -> None:
        if not isinstance(value, list):
            raise RuleError(f"{where} must be a list")
        for i, part in enumerate(value):
            check(part, f"{where}[{i}]", depth)

    return check_list


def _check_constant(value: JSON, where: str, depth: int) -> None:
    if isinstance(value, (dict, list)):
        raise RuleError(f"{where} must be a constant")


def _check_value(value: JSON, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RuleError(f"{where} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict) and "user" in value:
        _keys(value, {"user"}, {"prefix"}, where)
        _check_text(value["user"], f"{where}.user", depth)
        if not isinstance(value.get("prefix", ""), str):
            raise RuleError(f"{where}.prefix must be text")
    elif isinstance(value, dict):
        _keys(value, {"seen"}, set(), where)
        _keys(value["seen"], {"tool", "args", "path"}, set(), f"{where}.seen")
        for key in ("tool", "args", "path"):
            PARTS[key](value["seen"][key], f"{where}.seen.{key}", depth + 1)
    else:
        _check_constant(value, where, depth)


def _check_args(value: JSON, where: str, depth: int) -> None:
    _keys(value, set(), set(value) if isinstance(value, dict) else set(), where)
    for key, part in value.items():
        _check_value(part, f"{where}.{key}", depth + 1)


def _check_call(value: JSON, where: str, depth: int) -> None:
    _keys(value, {"tool", "args"}, set(), where)
    _check_text(value["tool"], f"{where}.tool", depth)
    _check_args(value["args"], f"{where}.args", depth)


def _check_case(value: JSON, where: str, depth: int) -> None:
    _keys(value, {"where", "then"}, set(), where)
    _keys(
        value["where"],
        set(),
        set(value["where"]) if isinstance(value["where"], dict) else set(),
        f"{where}.where",
    )
    for path, test in value["where"].items():
        _check_test(test, f"{where}.where.{path}")
    check_rule(value["then"], f"{where}.then", depth + 1)


def _check_test(test: JSON, where: str) -> None:
    if not isinstance(test, dict):
        return _check_constant(test, where, 0)
    if len(test) != 1 or not set(test) <= {"not", "above", "present"}:
        raise RuleError(f"{where} must be a constant or one of not, above, present")
    [(key, value)] = test.items()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (key == "present" and not isinstance(value, bool)) or (key == "above" and not number):
        raise RuleError(f"{where}.{key} has the wrong type")
    _check_constant(value, f"{where}.{key}", 0)


def _check_one_of(value: JSON, where: str, depth: int) -> None:
    _keys(value, {"words", "is"}, set(), where)
    _list_of(_check_constant)(value["words"], f"{where}.words", depth)
    _check_value(value["is"], f"{where}.is", depth + 1)


def _check_world(value: JSON, where: str, depth: int) -> None:
    if not isinstance(value, str) or value not in worlds.kinds():
        raise RuleError(f"{where} must be one of {', '.join(worlds.kinds())}; rollout.worlds adds your own")


def _check_part(value: JSON, where: str, depth: int) -> None:
    if value not in GROUNDED_PARTS:
        raise RuleError(f"{where} must be one of {', '.join(GROUNDED_PARTS)}")


# kind -> (keys it needs, keys it may have)
SHAPES: dict[str, tuple[set[str], set[str]]] = {
    "called": ({"tool", "args"}, set()),
    "only_calls": ({"tools", "calls"}, {"after"}),
    "says": (set(), {"about", "among", "all", "none", "one_of"}),
    "if_observed": ({"tool", "args", "cases"}, {"else"}),
    "all": ({"rules"}, set()),
    "any": ({"rules"}, set()),
    "grounded": (set(), {"world", "part"}),
}
PARTS: dict[str, Check] = {
    "tool": _check_text,
    "path": _check_text,
    "args": _check_args,
    "tools": _list_of(_check_text),
    "calls": _list_of(_check_call),
    "after": _check_call,
    "about": _check_value,
    "among": _list_of(_check_value),
    "all": _list_of(_check_value),
    "none": _list_of(_check_value),
    "one_of": _check_one_of,
    "cases": _list_of(_check_case),
    "else": check_rule,
    "rules": _list_of(check_rule),
    "world": _check_world,
    "part": _check_part,
}
