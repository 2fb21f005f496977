"""What a row must be, and every fault of one that is not.

Flows in: one row as plain data, in any form. Flows out: its faults, each a reason code, the field's path and a
sentence; or, for staging, the row taken apart on the way.
Invariant: a row without faults converts to a task; a row with one never reaches training. No row, however odd,
makes the check raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from envace.data import jsontext
from envace.data.checklist import checklist_faults
from envace.data.faults import Fault, Reject, shape_fault
from envace.data.forms import Form, Kind, read_form
from envace.data.rules import (
    DEFAULTS,
    RULES,
    Dialogue,
    Options,
    by_name,
    message_faults,
    said,
)
from envace.data.toolschema import read_tools, tool_faults

__all__ = ["Checked", "Fault", "Options", "Reject", "check_row", "examine"]

ANNOTATE = "python -m envace.data annotate"
WORLD = "must be the JSON text of an object"
RECORDS = "each must have turn, name, arguments and result"
_encode = msgspec.json.Encoder().encode


class PrefixMessage(msgspec.Struct):
    role: str
    content: str | None = None


class Record(msgspec.Struct):
    turn: int
    name: str
    arguments: dict[str, Any]
    result: Any


@dataclass(slots=True)
class Checked:
    """A row taken apart. Without faults every part is there."""

    form: Form
    faults: list[Fault] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)  # of every call of the dialogue, in order
    rules: list[Any] = field(
        default_factory=list
    )  # of every item of the used variant, in order; None for none
    world: Any = None
    records: list[Any] | None = None


def check_row(row: Any, options: Options = DEFAULTS) -> list[Fault]:
    """All faults found in a row; later parts are checked even when earlier ones are broken."""
    return examine(row, options).faults


def examine(row: Any, options: Options = DEFAULTS) -> Checked:
    """A row's faults, and its parsed parts."""
    unstorable = _unstorable(row)
    checked = Checked(read_form(row))
    if unstorable:
        checked.faults.append(unstorable)
    else:
        _check(checked, options)
    return checked


def _unstorable(row: Any) -> Fault | None:
    try:
        _encode(row)
    except UnicodeEncodeError:
        return Fault(Reject.BAD_TEXT, "row", "holds half of a surrogate pair, which UTF-8 cannot store")
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        return Fault(Reject.WRONG_TYPE, "row", f"is not plain JSON data: {e}")
    return None


def _check(checked: Checked, options: Options) -> None:
    form, faults = checked.form, checked.faults
    if form.kind is Kind.RAW:
        faults.append(Fault(Reject.NO_CHECKLIST, "checklists", f"is missing: `{ANNOTATE}` writes one"))
    faults += form.faults
    if form.kind is Kind.FINISHED and form.extra is None:
        return
    faults += _id(form)
    faults += _dialogue(checked, options)
    if form.extra is not None:
        faults += _prefix(form)
        faults += _extension(checked, form.extra)
    if form.kind is not Kind.RAW and not any(f.field == form.names.checklist for f in form.faults):
        users = _users(form.messages)
        faults += checklist_faults(form.checklist, form.names.checklist, users, checked.rules)


def _id(form: Form) -> Iterator[Fault]:
    if fault := shape_fault(str, form.uuid, "uuid"):
        yield fault
    elif not form.uuid:
        yield Fault(Reject.MISSING_FIELD, "uuid", "is empty")
    if form.source and not isinstance(form.source, str):
        yield Fault(Reject.WRONG_TYPE, "data_source", "must be text")


def _dialogue(checked: Checked, options: Options) -> Iterator[Fault]:
    form, names = checked.form, checked.form.names
    offers = read_tools(form.tools)
    if not any(f.field == names.tools or f.field == "metadata" for f in form.faults):
        yield from tool_faults(form.tools, offers, names.tools, options.strict_tools)
    unreadable = message_faults(form.messages, names.messages)
    yield from unreadable
    if unreadable:
        return
    dialogue = Dialogue(said(form.messages, names.messages), by_name(form.tools, offers), options)
    for rule in RULES:
        yield from rule(dialogue)
    checked.arguments = dialogue.arguments


def _prefix(form: Form) -> Iterator[Fault]:
    if fault := shape_fault(list[PrefixMessage], form.prefix, "messages"):
        yield fault
        return
    start = [(m["role"], m.get("content") or "") for m in form.prefix]
    if not start or start[-1][0] != "user" or [r for r, _ in start[:-1]] not in ([], ["system"]):
        yield Fault(
            Reject.ROLE_ORDER, "messages", "must be an optional system message and the first user message"
        )
    elif isinstance(form.messages, list) and not _begins(form.messages, start):
        yield Fault(Reject.PREFIX_MISMATCH, "messages", f"is not the start of {form.names.messages}")


def _begins(messages: list[Any], start: list[tuple[str, str]]) -> bool:
    whole = [m for m in messages[: len(start)] if isinstance(m, dict)]
    return [(m.get("role"), m.get("content") or "") for m in whole] == start


def _users(messages: Any) -> int:
    rows = messages if isinstance(messages, list) else []
    return sum(isinstance(m, dict) and m.get("role") == "user" for m in rows)


def _extension(checked: Checked, extra: dict[str, Any]) -> Iterator[Fault]:
    if fault := shape_fault(
        list[str], extra.get("tags") or [], "extra_info.tags", reason=Reject.BAD_EXTENSION
    ):
        yield fault
    checked.world, fault = _extra(extra.get("world"), dict[str, Any], "extra_info.world", WORLD)
    if fault:
        yield fault
    checked.records, fault = _extra(extra.get("records"), list[Record], "extra_info.records", RECORDS)
    if fault:
        yield fault


def _extra(value: Any, kind: Any, at: str, words: str) -> tuple[Any, Fault | None]:
    try:
        value = jsontext.read_or_take(value)
    except ValueError as e:
        return None, Fault(Reject.BAD_EXTENSION, at, f"is not JSON: {e}")
    fault = None if value is None else shape_fault(kind, value, at)
    return value, fault and Fault(Reject.BAD_EXTENSION, at, f"{words} ({fault.field} {fault.message})")
