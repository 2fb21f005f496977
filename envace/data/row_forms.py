"""The three forms a CM2 row comes in, read as one.

Flows in: a row as plain data, in any form. Flows out: a `RowForm`: the parts every form has, JSON texts
parsed once, and the names the parts have in the file. Invariant: reading never raises; what cannot be read is
a fault of the form, and its part is None. No part is checked here.

raw        {uuid, messages (whole dialogue), metadata (JSON text that holds tools)}: not annotated yet
annotated  {uuid, messages (whole dialogue), tools, checklists [variant][turn][item]}
finished   {uuid, messages (up to the first user message), data_source, extra_info {messages (whole), tools,
           interaction_kwargs {checklist_list [variant][turn][item]}, ...}}; `checklists` is ignored
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from envace.data import jsontext
from envace.data.faults import Fault, Reject
from envace.types import JSON

Row = dict[str, JSON]


class FormKind(StrEnum):
    RAW = "raw"
    ANNOTATED = "annotated"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class PartNames:
    """Where the parts stand in the file, for messages."""

    messages: str = "messages"
    tools: str = "tools"
    checklist: str = "checklists"
    prefix: str = "messages"
    extra: str = "row"


IN_ROW = PartNames()
IN_METADATA = PartNames(tools="metadata.tools")
IN_FINISHED = PartNames(
    messages="extra_info.messages",
    tools="extra_info.tools",
    checklist="extra_info.interaction_kwargs.checklist_list",
    extra="extra_info",
)


@dataclass(slots=True)
class RowForm:
    """`RowForm(FormKind.RAW, "u-1", messages=[...], tools=[...])`; a part that is absent or unreadable is
    None."""

    kind: FormKind
    uuid: JSON = None
    messages: JSON = None
    """The whole reference dialogue."""
    tools: JSON = None
    """A list of function schemas."""
    prefix: JSON = None
    """The dialogue up to its first user message."""
    checklist: JSON = None
    """[variant][turn][item]."""
    source: JSON = None
    extra: Row | None = None
    """A finished row's extra_info."""
    names: PartNames = IN_ROW
    faults: list[Fault] = field(default_factory=list)
    """Met while reading."""

    def read_text(self, value: JSON, at: str, reason: Reject) -> JSON:
        """The value of a part that may be JSON text; None, and a fault, where it does not parse."""
        try:
            return jsontext.read_or_take(value)
        except ValueError as e:
            self.faults.append(Fault(reason, at, f"is not JSON: {e}"))
            return None

    def read_tools(self, value: JSON) -> JSON:
        """Tools as plain data. Given as objects they may come from parquet, where an absent key reads as
        null."""
        if isinstance(value, str):
            return self.read_text(value, self.names.tools, Reject.BAD_TOOLS)
        try:
            return jsontext.read(msgspec.json.encode(jsontext.without_nulls(value)))
        except UnicodeEncodeError:
            return value  # its text is judged with the rest of the row's
        except (TypeError, ValueError, RecursionError) as e:
            self.faults.append(Fault(Reject.BAD_TOOLS, self.names.tools, f"is not plain JSON data: {e}"))
            return None


def read_form(row: JSON) -> RowForm:
    """A row in any form as one `RowForm`. One that is none of them is taken for finished, whose faults say
    more."""
    if not isinstance(row, dict):
        return RowForm(FormKind.FINISHED, faults=[Fault(Reject.WRONG_TYPE, "row", "must be an object")])
    if row.get("extra_info") is not None or not ("tools" in row or "metadata" in row):
        return _finished(row)
    kind = FormKind.RAW if row.get("checklists") is None else FormKind.ANNOTATED
    form = RowForm(kind, uuid=row.get("uuid"), source=row.get("data_source"))
    form.messages = form.read_text(row.get("messages"), "messages", Reject.WRONG_TYPE)
    form.prefix = first_prompt(form.messages)
    tools = row.get("tools")
    if tools is None:
        form.names = IN_METADATA
        metadata = form.read_text(row.get("metadata"), "metadata", Reject.BAD_TOOLS)
        tools = metadata.get("tools") if isinstance(metadata, dict) else None
    form.tools = form.read_tools(tools)
    if kind is FormKind.ANNOTATED:
        form.checklist = form.read_text(row.get("checklists"), "checklists", Reject.BAD_CHECKLIST)
    return form


def _finished(row: Row) -> RowForm:
    form = RowForm(FormKind.FINISHED, uuid=row.get("uuid"), source=row.get("data_source"), names=IN_FINISHED)
    extra = row.get("extra_info")
    if not isinstance(extra, dict):
        reason = Reject.MISSING_FIELD if extra is None else Reject.WRONG_TYPE
        form.faults.append(
            Fault(reason, "extra_info", "is missing" if extra is None else "must be an object")
        )
        return form
    kwargs = extra.get("interaction_kwargs")
    form.extra, form.prefix, form.messages = extra, row.get("messages"), extra.get("messages")
    form.tools = form.read_tools(extra.get("tools"))
    form.checklist = kwargs.get("checklist_list") if isinstance(kwargs, dict) else None
    return form


def first_prompt(messages: JSON) -> JSON:
    """A dialogue up to and with its first user message; None when it is no list."""
    if not isinstance(messages, list):
        return None
    for i, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            return messages[: i + 1]
    return messages
