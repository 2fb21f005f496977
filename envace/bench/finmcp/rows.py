"""Rows of FinMCP-Bench: a conversation with its gold calls, cut into the turns a model plays.

Flows in: JSON files (a list of rows, or one row per line). Flows out: `FinMcpRow`s; tool schemas mined from
gold calls where no tool server states them.
Invariant: a row that does not fit is a named error, never skipped; two files may hold one row twice only if
it is the same row. Standard library only: the runner imports this in the harness's interpreter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from envace.errors import DataError
from envace.types import JSON

SUBSETS = {"single step": "single", "multi step": "multi", "multi turn": "multi_turn"}
"""As the rows say: as we do."""
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")  # of a gold message, for the model
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
ROLES = {"system", "user", "assistant", "tool"}
UNREAD = "malformed_call"
"""How a turn ends in which the model left a call in the text that the server could not read."""
ChatMessage = dict[str, JSON]
"""In OpenAI's form."""


class ToolSchema(TypedDict):
    """OpenAI's function schema."""

    type: str
    function: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A gold call with its recorded reply: `RecordedCall("get_quote", {"code": "X"}, '{"price": 1}')`."""

    name: str
    arguments: JSON
    reply: str


@dataclass(frozen=True, slots=True)
class FinMcpRow:
    """One conversation."""

    id: str
    subset: str
    """single | multi | multi_turn"""
    level: str
    """easy | medium | hard"""
    scenery: str
    """First part of the scenery."""
    messages: tuple[ChatMessage, ...]

    @property
    def task(self) -> str:
        return f"{self.subset}/{self.id}"

    @property
    def groups(self) -> list[list[RecordedCall]]:
        """Gold calls, one list per assistant message: calls of one message are parallel."""
        replies = {
            m.get("tool_call_id"): str(m.get("content") or "") for m in self.messages if m["role"] == "tool"
        }
        return [
            [_recorded(call, replies.get(call["id"], "")) for call in m["tool_calls"]]
            for m in self.messages
            if m["role"] == "assistant" and m.get("tool_calls")
        ]

    @property
    def gold(self) -> list[list[str]]:
        """Names of the gold calls."""
        return [[call.name for call in calls] for calls in self.groups]

    @property
    def recorded(self) -> list[RecordedCall]:
        return [call for calls in self.groups for call in calls]

    @property
    def turns(self) -> list[list[ChatMessage]]:
        """What a model is given at each user turn: the gold conversation up to that user message."""
        users = [m["role"] == "user" for m in self.messages] + [False]
        ends = [i for i, (is_user, more) in enumerate(zip(users, users[1:])) if is_user and not more]
        shown = [{k: v for k, v in m.items() if k != "tool_calls" or v} for m in self.messages]
        return [[dict(m) for m in shown[: end + 1]] for end in ends]


def read(paths: Iterable[Path]) -> list[FinMcpRow]:
    """Every row of the files, in order. Raises DataError naming file and row for one that does not fit."""
    rows: dict[str, FinMcpRow] = {}
    for path in paths:
        for k, data in enumerate(_items(path)):
            try:
                row = _row(data)
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                why = f"{type(e).__name__}: {e}"
                raise DataError(f"FinMCP: {path.name}, row {k} does not fit ({why})") from None
            if rows.setdefault(row.task, row) != row:
                raise DataError(
                    f"{path.name}, row {k}: another row has the id {row.task}; correct one of the two"
                )
    if not rows:
        raise DataError("FinMCP: the files hold no rows; correct options.uri or options.patterns")
    return list(rows.values())


def digest(paths: Iterable[Path]) -> str:
    """Hash of the files' content, whatever they are called."""
    sums = sorted(hashlib.sha256(p.read_bytes()).hexdigest() for p in paths)
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def mined_tools(rows: Sequence[FinMcpRow]) -> list[ToolSchema]:
    """Tool schemas as far as gold calls show them: names and types of arguments, no descriptions, none
    required.
    """
    seen: dict[str, dict[str, str]] = {}
    for call in (call for row in rows for call in row.recorded):
        properties = seen.setdefault(call.name, {})
        for name, value in call.arguments.items() if isinstance(call.arguments, dict) else ():
            properties.setdefault(str(name), TYPES.get(type(value), "string"))
    schemas = []
    for name, types in sorted(seen.items()):
        parameters = {"type": "object", "properties": {k: {"type": t} for k, t in sorted(types.items())}}
        function = {"name": name, "description": name, "parameters": parameters}
        schemas.append(ToolSchema(type="function", function=function))
    return schemas


def _items(path: Path) -> list[JSON]:
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        data = json.loads(text)
    except ValueError as e:
        raise DataError(f"{path.name} is not JSON ({e}); fetch it anew") from None
    if not isinstance(data, list):
        raise DataError(f"{path.name} is not a list of rows")
    return data


def _row(data: JSON) -> FinMcpRow:
    messages = tuple(_message(m, k) for k, m in enumerate(data["messages"]))
    level = str((data.get("diff_level") or {}).get("level") or "unknown")
    scenery = str(data.get("scenery") or "unknown").split("-")[0].strip()
    row = FinMcpRow(str(data["id"]), SUBSETS[data["task"]], level, scenery, messages)
    if not row.turns:
        raise ValueError("no user message")
    return row


def _message(message: ChatMessage, k: int) -> ChatMessage:
    """A gold message in the one form: role, text, and calls that have an id and arguments as JSON text."""
    if message["role"] not in ROLES:
        raise ValueError(f"message {k} has the role {message['role']!r}")
    made = {key: message[key] for key in KEPT if message.get(key) is not None}
    for i, call in enumerate(message.get("tool_calls") or ()):
        function, arguments = call["function"], call["function"].get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        named = {"name": str(function["name"]), "arguments": text}
        one = {"id": str(call.get("id") or f"{k}-{i}"), "type": "function", "function": named}
        made["tool_calls"] = [*(made["tool_calls"] if i else ()), one]
    return made | {"content": message.get("content") or ""}


def _recorded(call: ChatMessage, reply: str) -> RecordedCall:
    """Arguments as data; text that is no JSON stays text."""
    text = call["function"].get("arguments")
    try:
        arguments = json.loads(text) if text else {}
    except (ValueError, TypeError):
        arguments = text
    return RecordedCall(call["function"]["name"], arguments, reply)
