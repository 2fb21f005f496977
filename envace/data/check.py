"""What a CM2 row must be, and every fault of one that is not.

Flows in: one row as plain data. Flows out: its faults, each a reason code, the field's path and a sentence.
Invariant: a row without faults converts to a task; a row with one never reaches training. No row, however odd,
makes the check raise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jsonschema

from envace.judge.rule_check import RuleError, check_rule

FOCUS = (
    "assistant.tool_calls",
    "assistant.content.thinking",
    "assistant.content.user_visible_reply",
    "tool.content",
)
EVIDENCE = (*FOCUS, "user.content")
ROLES = ("system", "user", "assistant", "tool", "observation")


class Reject(StrEnum):
    """Why a row was left out. Counted in the manifest."""

    BAD_JSON = "bad_json"  # the line is not a JSON object
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    BAD_TEXT = "bad_text"  # text that no UTF-8 file can hold
    ROLE_ORDER = (
        "role_order"  # not [system,] user, then assistants and tools, ending on an assistant without calls
    )
    RESULT_COUNT = "result_count"  # an assistant's k calls are not followed by k tool messages
    RESULT_NOT_JSON = "result_not_json"
    PREFIX_MISMATCH = "prefix_mismatch"  # `messages` is not the start of the reference dialogue
    BAD_TOOLS = "bad_tools"  # no list of function schemas, or two of one name
    UNKNOWN_TOOL = "unknown_tool"  # the reference calls a tool that is not offered
    BAD_CHECKLIST = "bad_checklist"
    BAD_WEIGHTS = "bad_weights"  # of a turn, not summing to 1
    BAD_RULE = "bad_rule"
    TURN_COUNT = "turn_count"  # more checklist turns than user messages
    BAD_EXTENSION = "bad_extension"  # extra_info.world or extra_info.records do not parse
    DUPLICATE_ID = "duplicate_id"  # an earlier row has this uuid
    PROMPT_TOO_LONG = (
        "prompt_too_long"  # the first prompt, tools included, exceeds data.max_first_prompt_tokens
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """`Fault(Reject.BAD_WEIGHTS, "extra_info...[0][1]", "weights sum to 0.8, not 1")`."""

    reason: Reject
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message} [{self.reason}]"


class _Stop(Exception):
    """The part under check is too broken to go on with."""


class _Faults(list[Fault]):
    def note(self, reason: Reject, field: str, message: str) -> None:
        self.append(Fault(reason, field, message))

    def need(
        self, value: Any, kind: type | tuple[type, ...], field: str, reason: Reject = Reject.WRONG_TYPE
    ) -> Any:
        """The value if it has the type, else a fault and _Stop."""
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
        wanted = " or ".join(NAMES[k] for k in (kind if isinstance(kind, tuple) else (kind,)))
        if value is None:
            self.note(Reject.MISSING_FIELD if reason is Reject.WRONG_TYPE else reason, field, "is missing")
        else:
            self.note(reason, field, f"must be {wanted}, not {NAMES.get(type(value), type(value).__name__)}")
        raise _Stop


NAMES = {
    str: "text",
    list: "a list",
    dict: "an object",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


def check_row(row: Any) -> list[Fault]:
    """All faults found in a row; later parts are checked even when earlier ones are broken."""
    faults = _Faults()
    try:
        faults.need(row, dict, "row")
        _text_is_storable(row, faults)
        extra = faults.need(row.get("extra_info"), dict, "extra_info")
    except _Stop:
        return faults
    for part in (_check_id, _check_tools, _check_dialogue, _check_prefix, _check_checklist, _check_extension):
        try:
            part(row, extra, faults)
        except _Stop:
            continue
    return faults


def _text_is_storable(row: dict[str, Any], faults: _Faults) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        faults.note(Reject.BAD_TEXT, "row", "holds half of a surrogate pair, which UTF-8 cannot store")
        raise _Stop from None
    except (TypeError, ValueError, RecursionError) as e:
        faults.note(Reject.WRONG_TYPE, "row", f"is not plain JSON data: {e}")
        raise _Stop from None


def _check_id(row: dict[str, Any], extra: dict[str, Any], faults: _Faults) -> None:
    if not faults.need(row.get("uuid"), str, "uuid"):
        faults.note(Reject.MISSING_FIELD, "uuid", "is empty")
    faults.need(row.get("data_source") or "", str, "data_source")


def tool_list(extra: dict[str, Any]) -> Any:
    """`extra_info.tools`, a JSON text, as data; None when it does not parse."""
    tools = extra.get("tools")
    try:
        return json.loads(tools) if isinstance(tools, str) else tools
    except (ValueError, RecursionError):
        return None


def _check_tools(row: dict[str, Any], extra: dict[str, Any], faults: _Faults) -> None:
    tools = faults.need(tool_list(extra), list, "extra_info.tools", Reject.BAD_TOOLS)
    names: set[str] = set()
    for i, tool in enumerate(tools):
        at = f"extra_info.tools[{i}].function"
        function = faults.need(
            tool.get("function") if isinstance(tool, dict) else None, dict, at, Reject.BAD_TOOLS
        )
        name = faults.need(function.get("name"), str, f"{at}.name", Reject.BAD_TOOLS)
        if name in names:
            faults.note(Reject.BAD_TOOLS, f"{at}.name", f"{name!r} is offered twice")
        names.add(name)
        _check_parameters(function.get("parameters"), f"{at}.parameters", faults)
    if not tools:
        faults.note(Reject.BAD_TOOLS, "extra_info.tools", "is empty")


def _check_parameters(schema: Any, at: str, faults: _Faults) -> None:
    if schema is None:
        return  # a tool without parameters
    faults.need(schema, dict, at, Reject.BAD_TOOLS)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError) as e:
        faults.note(Reject.BAD_TOOLS, at, f"is no JSON schema: {getattr(e, 'message', e)}")
    if schema.get("type", "object") != "object":
        faults.note(Reject.BAD_TOOLS, f"{at}.type", f"must be 'object', not {schema['type']!r}")


# what an ordinary message may follow; tool messages are counted against the calls before them instead
FOLLOWS = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "tool": ("assistant",),
    "assistant": ("user",),
}


def _check_dialogue(row: dict[str, Any], extra: dict[str, Any], faults: _Faults) -> None:
    messages = faults.need(extra.get("messages"), list, "extra_info.messages")
    offered, waiting, before = _offered(extra), 0, ""
    for i, message in enumerate(messages):
        at = f"extra_info.messages[{i}]"
        role = _role(message, at, faults)
        if waiting and role != "tool":
            faults.note(Reject.RESULT_COUNT, at, f"{waiting} more tool message(s) should stand here")
            raise _Stop
        if role == "tool":
            waiting = _check_result(message, at, waiting, faults)
        elif role not in FOLLOWS[before]:
            faults.note(
                Reject.ROLE_ORDER,
                f"{at}.role",
                f"{role!r} cannot stand {'after ' + repr(before) if before else 'first'}",
            )
            raise _Stop
        if role == "assistant":
            waiting = len(_check_calls(message, at, offered, faults))
        before = role
    if before != "assistant" or waiting:
        faults.note(
            Reject.ROLE_ORDER, "extra_info.messages", "must end on an assistant message without calls"
        )


def _offered(extra: dict[str, Any]) -> set[str]:
    tools = tool_list(extra)
    functions = [t.get("function") for t in tools if isinstance(t, dict)] if isinstance(tools, list) else []
    return {f["name"] for f in functions if isinstance(f, dict) and isinstance(f.get("name"), str)}


def _role(message: Any, at: str, faults: _Faults) -> str:
    faults.need(message, dict, at)
    role = faults.need(message.get("role"), str, f"{at}.role")
    if role not in ROLES:
        faults.note(Reject.ROLE_ORDER, f"{at}.role", f"{role!r} is none of {', '.join(ROLES)}")
        raise _Stop
    faults.need(message.get("content") or "", str, f"{at}.content")
    return "tool" if role == "observation" else role


def _check_result(message: dict[str, Any], at: str, waiting: int, faults: _Faults) -> int:
    if not waiting:
        faults.note(Reject.RESULT_COUNT, at, "answers no call")
        raise _Stop
    try:
        json.loads(message.get("content") or "")
    except (ValueError, RecursionError):
        faults.note(Reject.RESULT_NOT_JSON, f"{at}.content", "is not JSON")
    return waiting - 1


def _check_calls(message: dict[str, Any], at: str, offered: set[str], faults: _Faults) -> list[Any]:
    calls = faults.need(message.get("tool_calls") or [], list, f"{at}.tool_calls")
    for k, call in enumerate(calls):
        spot = f"{at}.tool_calls[{k}].function"
        function = faults.need(call.get("function") if isinstance(call, dict) else None, dict, spot)
        name = faults.need(function.get("name"), str, f"{spot}.name")
        if name not in offered:
            faults.note(Reject.UNKNOWN_TOOL, f"{spot}.name", f"{name!r} is not among extra_info.tools")
        if not isinstance(arguments(function), dict):
            faults.note(Reject.WRONG_TYPE, f"{spot}.arguments", "must be the JSON text of an object")
    return calls


def arguments(function: dict[str, Any]) -> Any:
    """A call's arguments as data; None when they do not parse."""
    given = function.get("arguments")
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return None


def _check_prefix(row: dict[str, Any], extra: dict[str, Any], faults: _Faults) -> None:
    prefix = faults.need(row.get("messages"), list, "messages")
    whole = extra.get("messages")
    said = [(_role(m, f"messages[{i}]", faults), m.get("content") or "") for i, m in enumerate(prefix)]
    if not said or said[-1][0] != "user" or [r for r, _ in said[:-1]] not in ([], ["system"]):
        faults.note(
            Reject.ROLE_ORDER, "messages", "must be an optional system message and the first user message"
        )
    elif (
        isinstance(whole, list)
        and [(m.get("role"), m.get("content") or "") for m in whole[: len(said)] if isinstance(m, dict)]
        != said
    ):
        faults.note(Reject.PREFIX_MISMATCH, "messages", "is not the start of extra_info.messages")


def _check_checklist(row: dict[str, Any], extra: dict[str, Any], faults: _Faults) -> None:
    at = "extra_info.interaction_kwargs.checklist_list"
    kwargs = faults.need(extra.get("interaction_kwargs"), dict, "extra_info.interaction_kwargs")
    variants = faults.need(kwargs.get("checklist_list"), list, at)
    turns = faults.need(variants[0] if variants else [], list, f"{at}[0]")
    if not turns:
        faults.note(Reject.BAD_CHECKLIST, at, "holds no turn")
    messages = extra.get("messages")
    users = (
        sum(isinstance(m, dict) and m.get("role") == "user" for m in messages)
        if isinstance(messages, list)
        else 0
    )
    if len(turns) > users:
        faults.note(
            Reject.TURN_COUNT, f"{at}[0]", f"{len(turns)} turns, but the dialogue has {users} user message(s)"
        )
    for t, items in enumerate(turns):
        _check_turn(faults.need(items, list, f"{at}[0][{t}]", Reject.BAD_CHECKLIST), f"{at}[0][{t}]", faults)


def _check_turn(items: list[Any], at: str, faults: _Faults) -> None:
    ids = [i.get("id") for i in items if isinstance(i, dict)]
    for k, item in enumerate(items):
        _check_item(faults.need(item, dict, f"{at}[{k}]", Reject.BAD_CHECKLIST), ids, f"{at}[{k}]", faults)
    total = sum(item["weight"] for item in items)
    if abs(total - 1) > 1e-6:
        faults.note(Reject.BAD_WEIGHTS, at, f"weights sum to {total:g}, not 1")
    if len({json.dumps(i) for i in ids}) < len(ids):
        faults.note(Reject.BAD_CHECKLIST, at, "two items have one id")


def _check_item(item: dict[str, Any], ids: list[Any], at: str, faults: _Faults) -> None:
    for key, kind in (
        ("id", str),
        ("question", str),
        ("pass_condition", str),
        ("required_for_next_turn", bool),
        ("weight", (int, float)),
    ):
        faults.need(item.get(key), kind, f"{at}.{key}", Reject.BAD_CHECKLIST)
    if item.get("focus_on") not in FOCUS:
        faults.note(
            Reject.BAD_CHECKLIST, f"{at}.focus_on", f"{item.get('focus_on')!r} is none of {', '.join(FOCUS)}"
        )
    if not 0 <= item["weight"] <= 1:
        faults.note(Reject.BAD_WEIGHTS, f"{at}.weight", f"{item['weight']} is not between 0 and 1")
    for key in ("failure_examples", "dependence"):
        for k, part in enumerate(faults.need(item.get(key) or [], list, f"{at}.{key}", Reject.BAD_CHECKLIST)):
            faults.need(part, str, f"{at}.{key}[{k}]", Reject.BAD_CHECKLIST)
    for other in item.get("dependence") or []:
        if other not in ids:
            faults.note(Reject.BAD_CHECKLIST, f"{at}.dependence", f"{other!r} is no item of this turn")
    _check_evidence(item, at, faults)
    _check_rule(item, at, faults)


def _check_evidence(item: dict[str, Any], at: str, faults: _Faults) -> None:
    for k, part in enumerate(
        faults.need(item.get("evidence") or [], list, f"{at}.evidence", Reject.BAD_CHECKLIST)
    ):
        spot = f"{at}.evidence[{k}]"
        faults.need(part, dict, spot, Reject.BAD_CHECKLIST)
        for key in ("turn", "step"):
            if not 0 <= faults.need(part.get(key), int, f"{spot}.{key}", Reject.BAD_CHECKLIST) < 2**31:
                faults.note(Reject.BAD_CHECKLIST, f"{spot}.{key}", "is out of range")
        faults.need(part.get("snippet") or "", str, f"{spot}.snippet", Reject.BAD_CHECKLIST)
        if part.get("from") not in EVIDENCE:
            faults.note(
                Reject.BAD_CHECKLIST, f"{spot}.from", f"{part.get('from')!r} is none of {', '.join(EVIDENCE)}"
            )


def _check_rule(item: dict[str, Any], at: str, faults: _Faults) -> None:
    own = faults.need(item.get("extra_info") or {}, dict, f"{at}.extra_info", Reject.BAD_CHECKLIST)
    rule = own.get("rule")
    if rule is None:
        return
    try:
        check_rule(json.loads(rule) if isinstance(rule, str) else rule)
    except (RuleError, ValueError, RecursionError) as e:
        faults.note(Reject.BAD_RULE, f"{at}.extra_info.rule", str(e))


def _check_extension(row: dict[str, Any], extra: dict[str, Any], faults: _Faults) -> None:
    for k, tag in enumerate(
        faults.need(extra.get("tags") or [], list, "extra_info.tags", Reject.BAD_EXTENSION)
    ):
        faults.need(tag, str, f"extra_info.tags[{k}]", Reject.BAD_EXTENSION)
    for key, kind in (("world", dict), ("records", list)):
        text = extra.get(key)
        try:
            value = json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError):
            value = "?"
        if value is not None and not isinstance(value, kind):
            faults.note(Reject.BAD_EXTENSION, f"extra_info.{key}", f"must be the JSON text of {NAMES[kind]}")
        elif key == "records" and not all(map(_is_record, value or [])):
            faults.note(
                Reject.BAD_EXTENSION, "extra_info.records", "each must have turn, name, arguments and result"
            )


def _is_record(r: Any) -> bool:
    return (
        isinstance(r, dict)
        and {"turn", "name", "arguments", "result"} <= set(r)
        and isinstance(r["turn"], int)
        and isinstance(r["name"], str)
        and isinstance(r["arguments"], dict)
    )
