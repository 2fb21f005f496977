"""Rows of FinMCP-Bench: a conversation with its gold calls, cut into the turns a model plays.

Flows in: JSON files (a list of rows, or one row a line). Flows out: `Row`s; tool schemas mined from gold calls where
no tool server states them.
Invariant: a row that does not fit is a named error, never skipped; two files may hold one row twice only if it is
the same row. Standard library only: the runner imports this in the harness's interpreter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envace.errors import DataError

SUBSETS = {
    "single step": "single",
    "multi step": "multi",
    "multi turn": "multi_turn",
}  # as the rows say: as we do
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")  # of a gold message, for the model
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
ROLES = {"system", "user", "assistant", "tool"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A gold call with its recorded reply: `Recorded("get_quote", {"code": "X"}, '{"price": 1}')`."""

    name: str
    arguments: Any
    reply: str


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    subset: str  # single | multi | multi_turn
    level: str  # easy | medium | hard
    scenery: str  # first part of the scenery
    messages: tuple[dict[str, Any], ...]

    @property
    def task(self) -> str:
        return f"{self.subset}/{self.id}"

    @property
    def gold(self) -> list[list[str]]:
        """Names of the calls, one list an assistant message: calls of one message are parallel."""
        return [[c.name for c in calls] for calls in self._groups()]

    @property
    def recorded(self) -> list[Recorded]:
        return [call for calls in self._groups() for call in calls]

    @property
    def turns(self) -> list[list[dict[str, Any]]]:
        """What a model is given at each user turn: the gold conversation up to that user message."""
        ends = [
            i
            for i, m in enumerate(self.messages)
            if m["role"] == "user" and (i + 1 == len(self.messages) or self.messages[i + 1]["role"] != "user")
        ]
        return [[_shown(m) for m in self.messages[: end + 1]] for end in ends]

    def _groups(self) -> list[list[Recorded]]:
        replies = {
            m.get("tool_call_id"): str(m.get("content") or "") for m in self.messages if m["role"] == "tool"
        }
        return [
            [
                Recorded(
                    c["function"]["name"],
                    _arguments(c["function"].get("arguments")),
                    replies.get(c["id"], ""),
                )
                for c in m["tool_calls"]
            ]
            for m in self.messages
            if m["role"] == "assistant" and m.get("tool_calls")
        ]


def read(paths: Iterable[Path]) -> list[Row]:
    """Every row of the files, in order. Raises DataError naming file and row for one that does not fit."""
    rows: dict[str, Row] = {}
    for path in paths:
        for k, data in enumerate(_items(path)):
            row = _row(data, f"{path.name}, row {k}")
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


def _items(path: Path) -> list[Any]:
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


def _row(data: Any, where: str) -> Row:
    try:
        messages = tuple(_message(m, k) for k, m in enumerate(data["messages"]))
        level = str((data.get("diff_level") or {}).get("level") or "unknown")
        scenery = str(data.get("scenery") or "unknown").split("-")[0].strip()
        row = Row(str(data["id"]), SUBSETS[data["task"]], level, scenery, messages)
        if not row.turns:
            raise ValueError("no user message")
        _ = row.recorded
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise DataError(f"FinMCP: {where} does not fit ({type(e).__name__}: {e})") from None
    return row


def _message(message: dict[str, Any], k: int) -> dict[str, Any]:
    """A gold message in the one form: role, text, and calls that have an id and arguments as JSON text."""
    if message["role"] not in ROLES:
        raise ValueError(f"message {k} has the role {message['role']!r}")
    made = {key: message[key] for key in KEPT if message.get(key) is not None}
    if message.get("tool_calls"):
        made["tool_calls"] = [_call(c, f"{k}-{i}") for i, c in enumerate(message["tool_calls"])]
    return made | {"content": message.get("content") or ""}


def _call(call: dict[str, Any], own: str) -> dict[str, Any]:
    function, arguments = call["function"], call["function"].get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    named = {"name": str(function["name"]), "arguments": text}
    return {"id": str(call.get("id") or own), "type": "function", "function": named}


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in message.items() if k != "tool_calls" or v}


def _arguments(text: Any) -> Any:
    """A call's arguments as data; text that is no JSON stays text."""
    try:
        return json.loads(text) if text else {}
    except (ValueError, TypeError):
        return text


def mined_tools(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Tool schemas as far as gold calls show them: names and types of arguments, no descriptions, none required."""
    seen: dict[str, dict[str, str]] = {}
    for row in rows:
        for call in row.recorded:
            properties = seen.setdefault(call.name, {})
            for name, value in call.arguments.items() if isinstance(call.arguments, dict) else ():
                properties.setdefault(str(name), TYPES.get(type(value), "string"))
    return [_schema(name, properties) for name, properties in sorted(seen.items())]


def _schema(name: str, properties: dict[str, str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {k: {"type": t} for k, t in sorted(properties.items())}}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
