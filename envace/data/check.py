"""What a row must be, and every fault of one that is not.

Flows in: one row as plain data, in any form. Flows out: its faults, each a reason code, the field's path and
a sentence; or, for staging, the row taken apart on the way. Invariant: a row without faults converts to a
task; a row with one never reaches training. No row, however odd, makes the check raise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from envace.data import jsontext
from envace.data.checklist import checklist_faults
from envace.data.faults import Fault, Reject, shape_fault
from envace.data.offers import read_tools, tool_faults
from envace.data.row_forms import FormKind, RowForm, read_form
from envace.data.rules import DEFAULTS, RULES, Dialogue, RuleOptions, message_faults, said
from envace.types import JSON

ANNOTATE = "python -m envace.data annotate"
WORLD = "must be the JSON text of an object"
RECORDS = "each must have turn, name, arguments and result"
_encode = msgspec.json.Encoder().encode


class PrefixMessage(msgspec.Struct):
    role: str
    content: str | None = None


class RecordShape(msgspec.Struct):
    turn: int
    name: str
    arguments: dict[str, JSON]
    result: JSON


@dataclass(slots=True)
class CheckedRow:
    """A row taken apart. Without faults every part is there."""

    form: RowForm
    faults: list[Fault] = field(default_factory=list)
    arguments: list[JSON] = field(default_factory=list)
    """Of every call of the dialogue, in order."""
    rules: list[JSON] = field(default_factory=list)
    """Of every item of the used variant, in order; None for none."""
    world: JSON = None
    records: list[JSON] | None = None


def check_row(row: JSON, options: RuleOptions = DEFAULTS) -> list[Fault]:
    """All faults found in a row; later parts are checked even when earlier ones are broken."""
    return examine(row, options).faults


def examine(row: JSON, options: RuleOptions = DEFAULTS) -> CheckedRow:
    """A row's faults, and its parsed parts."""
    checked = CheckedRow(read_form(row))
    try:
        _encode(row)
    except UnicodeEncodeError:
        words = "holds half of a surrogate pair, which UTF-8 cannot store"
        checked.faults.append(Fault(Reject.BAD_TEXT, "row", words))
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        checked.faults.append(Fault(Reject.WRONG_TYPE, "row", f"is not plain JSON data: {e}"))
    else:
        checked.faults += _faults(checked, options)
    return checked


def _faults(checked: CheckedRow, options: RuleOptions) -> Iterator[Fault]:
    form = checked.form
    if form.kind is FormKind.RAW:
        yield Fault(Reject.NO_CHECKLIST, "checklists", f"is missing: `{ANNOTATE}` writes one")
    yield from form.faults
    if form.kind is FormKind.FINISHED and form.extra is None:
        return
    if fault := shape_fault(str, form.uuid, "uuid"):
        yield fault
    elif not form.uuid:
        yield Fault(Reject.MISSING_FIELD, "uuid", "is empty")
    if form.source and not isinstance(form.source, str):
        yield Fault(Reject.WRONG_TYPE, "data_source", "must be text")
    yield from _dialogue_faults(checked, options)
    if form.extra is not None:
        yield from _prefix_faults(form)
        yield from _extension_faults(checked, form.extra)
    if form.kind is not FormKind.RAW and not any(f.field == form.names.checklist for f in form.faults):
        messages = form.messages if isinstance(form.messages, list) else []
        users = sum(isinstance(m, dict) and m.get("role") == "user" for m in messages)
        yield from checklist_faults(form.checklist, form.names.checklist, users, checked.rules)


def _dialogue_faults(checked: CheckedRow, options: RuleOptions) -> Iterator[Fault]:
    form, names = checked.form, checked.form.names
    offers = read_tools(form.tools)
    if not any(f.field in (names.tools, "metadata") for f in form.faults):
        yield from tool_faults(form.tools, offers, names.tools, options.strict_tools)
    if unreadable := message_faults(form.messages, names.messages):
        yield from unreadable
        return
    known = {o.name: o for o in offers if o.name is not None} if isinstance(form.tools, list) else None
    dialogue = Dialogue(said(form.messages, names.messages), known, options)
    for rule in RULES:
        yield from rule(dialogue)
    checked.arguments = dialogue.arguments


def _prefix_faults(form: RowForm) -> Iterator[Fault]:
    """A finished row's `messages` are the first prompt of its dialogue."""
    if fault := shape_fault(list[PrefixMessage], form.prefix, "messages"):
        yield fault
        return
    start = [(m["role"], m.get("content") or "") for m in form.prefix]
    if not start or start[-1][0] != "user" or [role for role, _ in start[:-1]] not in ([], ["system"]):
        words = "must be an optional system message and the first user message"
        yield Fault(Reject.ROLE_ORDER, "messages", words)
    elif isinstance(form.messages, list):
        whole = [m for m in form.messages[: len(start)] if isinstance(m, dict)]
        if [(m.get("role"), m.get("content") or "") for m in whole] != start:
            yield Fault(Reject.PREFIX_MISMATCH, "messages", f"is not the start of {form.names.messages}")


def _extension_faults(checked: CheckedRow, extra: dict[str, JSON]) -> Iterator[Fault]:
    tags = extra.get("tags") or []
    if fault := shape_fault(list[str], tags, "extra_info.tags", reason=Reject.BAD_EXTENSION):
        yield fault
    parts = (("world", dict[str, JSON], WORLD), ("records", list[RecordShape], RECORDS))
    for name, kind, words in parts:
        at = f"extra_info.{name}"
        try:
            value = jsontext.read_or_take(extra.get(name))
        except ValueError as e:
            yield Fault(Reject.BAD_EXTENSION, at, f"is not JSON: {e}")
            continue
        setattr(checked, name, value)
        if value is not None and (fault := shape_fault(kind, value, at)):
            yield Fault(Reject.BAD_EXTENSION, at, f"{words} ({fault.field} {fault.message})")
