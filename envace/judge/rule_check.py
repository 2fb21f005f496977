"""Whether a rule is in the rule language (see `envace/judge/rules.py` for what rules mean).

A rule that passes can be evaluated without further type checks; no data, however odd, raises
anything but RuleError.
"""

from __future__ import annotations

from envace.types import JSON
from envace.worlds import registry as worlds

MAX_DEPTH = 24
"""Rules and values inside each other."""
GROUNDED_PARTS = ("records", "rules")
KINDS: dict[str, tuple[set[str], set[str]]] = {
    "called": ({"tool", "args"}, set()),
    "only_calls": ({"tools", "calls"}, {"after"}),
    "says": (set(), {"about", "among", "all", "none", "one_of"}),
    "if_observed": ({"tool", "args", "cases"}, {"else"}),
    "all": ({"rules"}, set()),
    "any": ({"rules"}, set()),
    "grounded": (set(), {"world", "part"}),
}
"""Kind of rule -> the keys it needs, the keys it may have."""
Form = str | list[str]
KEYS: dict[str, Form] = {
    "tool": "text",
    "path": "text",
    "args": "values",
    "tools": ["text"],
    "calls": ["call"],
    "after": "call",
    "about": "value",
    "among": ["value"],
    "all": ["value"],
    "none": ["value"],
    "one_of": "one_of",
    "cases": ["case"],
    "else": "rule",
    "rules": ["rule"],
    "world": "world",
    "part": "part",
}
"""Key of a rule -> the form of its value; in a list, of each of its values."""
OBJECTS: dict[str, dict[str, Form]] = {
    "call": {"tool": "text", "args": "values"},
    "seen": {"tool": "text", "args": "values", "path": "text"},
    "case": {"where": "tests", "then": "rule"},
    "one_of": {"words": ["constant"], "is": "value"},
}
"""Form -> its keys, all needed."""


class RuleError(ValueError):
    """The rule itself is broken; the message says where."""


def check_rule(rule: JSON, where: str = "rule", depth: int = 0) -> None:
    """Raise RuleError at the first part of a rule that is not in the language."""
    if depth > MAX_DEPTH:
        raise RuleError(f"{where} is nested more than {MAX_DEPTH} deep")
    kind = rule.get("kind") if isinstance(rule, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise RuleError(f"{where}.kind must be one of {', '.join(KINDS)}, not {kind!r}")
    needs, optional = KINDS[kind]
    _check_keys(rule, {"kind", *needs}, optional, where)
    for key, value in rule.items():
        if key != "kind":
            _check(value, KEYS[key], f"{where}.{key}", depth + 1)
    if "part" in rule and "world" not in rule:
        raise RuleError(f"{where}.world is missing: only with a world can a part of the responses be judged")


def _check(value: JSON, form: Form, where: str, depth: int) -> None:
    """Raise RuleError unless a value has a form."""
    if isinstance(form, list):
        if not isinstance(value, list):
            raise RuleError(f"{where} must be a list")
        for i, part in enumerate(value):
            _check(part, form[0], f"{where}[{i}]", depth)
    elif form == "rule":
        check_rule(value, where, depth)
    elif form == "value":
        _check_value(value, where, depth)
    elif form in OBJECTS:
        _check_keys(value, set(OBJECTS[form]), set(), where)
        for key, part in OBJECTS[form].items():
            _check(value[key], part, f"{where}.{key}", depth + (form != "call"))
    elif form in ("values", "tests"):
        _check_keys(value, set(), set(value) if isinstance(value, dict) else set(), where)
        for key, part in value.items():
            _check_test(part, f"{where}.{key}") if form == "tests" else _check_value(
                part, f"{where}.{key}", depth + 1
            )
    elif form == "text" and not (isinstance(value, str) and value):
        raise RuleError(f"{where} must be non-empty text")
    elif form == "constant" and isinstance(value, (dict, list)):
        raise RuleError(f"{where} must be a constant")
    elif form == "part" and value not in GROUNDED_PARTS:
        raise RuleError(f"{where} must be one of {', '.join(GROUNDED_PARTS)}")
    elif form == "world" and not (isinstance(value, str) and value in worlds.kinds()):
        raise RuleError(f"{where} must be one of {', '.join(worlds.kinds())}; rollout.worlds adds your own")


def _check_keys(value: JSON, needs: set[str], optional: set[str], where: str) -> None:
    if not isinstance(value, dict):
        raise RuleError(f"{where} must be an object")
    for key in sorted(needs - set(value)):
        raise RuleError(f"{where}.{key} is missing")
    for key in sorted(set(value) - needs - optional):
        raise RuleError(f"{where}.{key} is not known")


def _check_value(value: JSON, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RuleError(f"{where} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict) and "user" in value:
        _check_keys(value, {"user"}, {"prefix"}, where)
        _check(value["user"], "text", f"{where}.user", depth)
        if not isinstance(value.get("prefix", ""), str):
            raise RuleError(f"{where}.prefix must be text")
    elif isinstance(value, dict):
        _check_keys(value, {"seen"}, set(), where)
        _check(value["seen"], "seen", f"{where}.seen", depth)
    else:
        _check(value, "constant", where, depth)


def _check_test(test: JSON, where: str) -> None:
    """A constant that a field equals, or one comparison."""
    if not isinstance(test, dict):
        return _check(test, "constant", where, 0)
    if len(test) != 1 or not set(test) <= {"not", "above", "present"}:
        raise RuleError(f"{where} must be a constant or one of not, above, present")
    [(key, value)] = test.items()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (key == "present" and not isinstance(value, bool)) or (key == "above" and not number):
        raise RuleError(f"{where}.{key} has the wrong type")
    _check(value, "constant", f"{where}.{key}", 0)
