"""The three forms a CM2 row comes in, read as one.

Flows in: a row as plain data, in any form. Flows out: a `Form`: the parts every form has, JSON texts parsed once,
and the names the parts have in the file.
Invariant: reading never raises; what cannot be read is a fault of the form, and its part is None. No part is
checked here.

raw        {uuid, messages (whole dialogue), metadata (JSON text that holds tools)}: not annotated yet
annotated  {uuid, messages (whole dialogue), tools, checklists [variant][turn][item]}
finished   {uuid, messages (up to the first user message), data_source, extra_info {messages (whole), tools,
           interaction_kwargs {checklist_list [variant][turn][item]}, ...}}; a leftover `checklists` is ignored
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from envace.data import jsontext
from envace.data.faults import Fault, Reject

Row = dict[str, Any]


class Kind(StrEnum):
    RAW = "raw"
    ANNOTATED = "annotated"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Names:
    """Where the parts stand in the file, for messages."""

    messages: str = "messages"
    tools: str = "tools"
    checklist: str = "checklists"
    prefix: str = "messages"
    extra: str = "row"


IN_ROW = Names()
IN_FINISHED = Names(
    messages="extra_info.messages",
    tools="extra_info.tools",
    checklist="extra_info.interaction_kwargs.checklist_list",
    extra="extra_info",
)
IN_METADATA = Names(tools="metadata.tools")


@dataclass(slots=True)
class Form:
    """`Form(Kind.RAW, "u-1", messages=[...], tools=[...])`; a part that is absent or unreadable is None."""

    kind: Kind
    uuid: Any = None
    messages: Any = None  # the whole reference dialogue
    tools: Any = None  # a list of function schemas
    prefix: Any = None  # the dialogue up to its first user message
    checklist: Any = None  # [variant][turn][item]
    source: Any = None
    extra: Row | None = None  # a finished row's extra_info
    names: Names = IN_ROW
    faults: list[Fault] = field(default_factory=list)  # met while reading


def read_form(row: Any) -> Form:
    """A row in any form as one `Form`. Never raises."""
    if not isinstance(row, dict):
        return Form(Kind.FINISHED, faults=[Fault(Reject.WRONG_TYPE, "row", "must be an object")])
    kind = kind_of(row)
    form = Form(kind, uuid=row.get("uuid"), source=row.get("data_source"))
    READERS[kind](row, form)
    return form


def kind_of(row: Row) -> Kind:
    """Which form a row is in. A row that is none of them is taken for a finished one, whose faults say more."""
    if row.get("extra_info") is not None:
        return Kind.FINISHED
    if "tools" not in row and "metadata" not in row:
        return Kind.FINISHED
    return Kind.RAW if row.get("checklists") is None else Kind.ANNOTATED


def _finished(row: Row, form: Form) -> None:
    form.names = IN_FINISHED
    extra = row.get("extra_info")
    if not isinstance(extra, dict):
        found = "is missing" if extra is None else "must be an object"
        reason = Reject.MISSING_FIELD if extra is None else Reject.WRONG_TYPE
        form.faults.append(Fault(reason, "extra_info", found))
        return
    kwargs = extra.get("interaction_kwargs")
    form.extra = extra
    form.prefix = row.get("messages")
    form.messages = extra.get("messages")
    form.tools = _tools(extra.get("tools"), form)
    form.checklist = kwargs.get("checklist_list") if isinstance(kwargs, dict) else None


def _annotated(row: Row, form: Form) -> None:
    _raw(row, form)
    form.checklist = _json(row.get("checklists"), "checklists", Reject.BAD_CHECKLIST, form)


def _raw(row: Row, form: Form) -> None:
    form.messages = _json(row.get("messages"), "messages", Reject.WRONG_TYPE, form)
    form.prefix = first_prompt(form.messages)
    tools = row.get("tools")
    if tools is None:
        form.names = IN_METADATA
        metadata = _json(row.get("metadata"), "metadata", Reject.BAD_TOOLS, form)
        tools = metadata.get("tools") if isinstance(metadata, dict) else None
    form.tools = _tools(tools, form)


def first_prompt(messages: Any) -> Any:
    """A dialogue up to and with its first user message; None when it is no list."""
    if not isinstance(messages, list):
        return None
    for i, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            return messages[: i + 1]
    return messages


def _json(value: Any, at: str, reason: Reject, form: Form) -> Any:
    try:
        return jsontext.read_or_take(value)
    except ValueError as e:
        form.faults.append(Fault(reason, at, f"is not JSON: {e}"))
        return None


def _tools(value: Any, form: Form) -> Any:
    """Tools as plain data. Given as objects they may come from parquet, where an absent key reads as null."""
    if isinstance(value, str):
        return _json(value, form.names.tools, Reject.BAD_TOOLS, form)
    try:
        return jsontext.read(msgspec.json.encode(without_nulls(value)))
    except UnicodeEncodeError:
        return value  # its text is judged with the rest of the row's
    except (TypeError, ValueError, RecursionError) as e:
        form.faults.append(Fault(Reject.BAD_TOOLS, form.names.tools, f"is not plain JSON data: {e}"))
        return None


def without_nulls(value: Any) -> Any:
    """Plain data without the keys whose value is null."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


READERS: dict[Kind, Callable[[Row, Form], None]] = {
    Kind.RAW: _raw,
    Kind.ANNOTATED: _annotated,
    Kind.FINISHED: _finished,
}
