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
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from envace.errors import DataError
from envace.types import JSON

SUBSETS = {
    "single step": "single",
    "multi step": "multi",
    "multi turn": "multi_turn",
}  # as the rows say: as we do
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")  # of a gold message, for the model
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
ROLES = {"system", "user", "assistant", "tool"}
UNREAD = "malformed_call"  # how a turn ends in which the model left a call in the text that nobody could read
ChatMessage = dict[str, JSON]  # in OpenAI's form
ToolSchema = dict[str, JSON]  # OpenAI's function schema


class RecordedCall(NamedTuple):
    """A gold call with its recorded reply: `RecordedCall("get_quote", {"code": "X"}, '{"price": 1}')`."""

    name: str
    arguments: JSON  # text that is no JSON stays text
    reply: str


@dataclass(frozen=True, slots=True)
class FinMcpRow:
    """One conversation."""

    id: str
    subset: str  # single | multi | multi_turn
    level: str  # easy | medium | hard
    scenery: str  # first part of the scenery
    messages: tuple[ChatMessage, ...]

    @property
    def task(self) -> str:
        return f"{self.subset}/{self.id}"

    @property
    def groups(self) -> list[list[RecordedCall]]:
        """Gold calls with the replies that follow them, one list per assistant message: its calls are
        parallel.
        """
        made = []
        for at, message in enumerate(self.messages):
            if message["role"] == "assistant" and message.get("tool_calls"):
                replies = list(takewhile(lambda m: m["role"] == "tool", self.messages[at + 1 :]))
                made.append([_recorded(call, replies) for call in message["tool_calls"]])
        return made

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
        text = path.read_text(encoding="utf-8")
        try:
            lines = (
                [json.loads(line) for line in text.split("\n") if line.strip()]
                if path.suffix == ".jsonl"
                else 0
            )
            items = json.loads(text) if lines == 0 else lines
        except ValueError as e:
            raise DataError(f"{path.name} is not JSON ({e}); fetch it anew") from None
        if not isinstance(items, list):
            raise DataError(f"{path.name} is not a list of rows")
        for k, data in enumerate(items):
            try:
                row = _row(data)
            except (KeyError, TypeError, AttributeError, ValueError) as e:
                why = f"{type(e).__name__}: {e}"
                raise DataError(f"FinMCP: {path.name}, row {k} does not fit ({why})") from None
            if rows.setdefault(row.task, row) != row:
                another = f"another row has the id {row.task}; correct one of the two"
                raise DataError(f"{path.name}, row {k}: {another}")
    if not rows:
        raise DataError("FinMCP: the files hold no rows; correct options.uri or options.patterns")
    return list(rows.values())


def digest(paths: Iterable[Path]) -> str:
    """Hash of the files' content, whatever they are called."""
    sums = sorted(hashlib.sha256(p.read_bytes()).hexdigest() for p in paths)
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def mined_tools(rows: Sequence[FinMcpRow]) -> list[ToolSchema]:
    """Tool schemas as gold calls show them: names and types of arguments, no descriptions, none required."""
    seen: dict[str, dict[str, JSON]] = {}
    for call in (call for row in rows for call in row.recorded):
        properties = seen.setdefault(call.name, {})
        for name, value in call.arguments.items() if isinstance(call.arguments, dict) else ():
            properties.setdefault(str(name), {"type": TYPES.get(type(value), "string")})
    parameters = {name: {"type": "object", "properties": dict(sorted(p.items()))} for name, p in seen.items()}
    return [schema_of(name, None, parameters[name]) for name in sorted(seen)]


def schema_of(name: str, description: str | None, parameters: dict[str, JSON]) -> ToolSchema:
    """A tool as a function schema."""
    function = {"name": name, "description": description or name, "parameters": parameters}
    return {"type": "function", "function": function}


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


def _recorded(call: ChatMessage, replies: list[ChatMessage]) -> RecordedCall:
    """A call with the first of the replies that names it or none, which is taken from them."""
    text, reply = call["function"]["arguments"], ""
    for at, message in enumerate(replies):
        if str(message.get("tool_call_id", call["id"])) == call["id"]:
            reply = str(replies.pop(at).get("content") or "")
            break
    try:
        arguments = json.loads(text) if text else {}
    except ValueError:
        arguments = text
    return RecordedCall(call["function"]["name"], arguments, reply)
