"""Between CM2 rows and tasks.

Flows in: a row (plain data or read from parquet) or a task. Flows out: the other one.
Invariant: `task_from_row(row_from_task(task)) == task` for every task with a reference dialogue, also through
parquet. Rows of a foreign source bring no world and no rules; both are extensions inside `extra_info`.

A row in short: `uuid`, `messages` (up to the first user message), `data_source`, `extra_info` with `messages` (the
whole reference dialogue, arguments as JSON text), `tools` (JSON text), `interaction_kwargs.checklist_list`
[variant][turn][item], `original_index`, and the extensions `world`, `records` (those the dialogue does not hold),
`tags` and, per item, `extra_info.rule`; all three of `world`, `records` and `rule` are JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from envace.data.check import arguments, check_row, tool_list
from envace.errors import DataError
from envace.types import JSON, Item, Message, Record, Task, ToolCall

THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
Row = dict[str, Any]


# --- task -> row ----------------------------------------------------------------------------------------------


def row_from_task(task: Task) -> Row:
    """A task as a CM2 row. Raises DataError when it has no reference dialogue."""
    if not task.reference:
        raise DataError(f"task {task.id} has no reference dialogue, so it cannot be written as a row")
    extra = {
        "messages": [_message_out(m, f"{i}") for i, m in enumerate(task.reference)],
        "tools": json.dumps(task.tools, ensure_ascii=False),
        "interaction_kwargs": {
            "name": "checklist",
            "checklist_list": [[[_item_out(i) for i in items] for items in task.checklist]],
        },
        "need_tools_kwargs": True,
        "original_index": task.id,
        "world": _text(task.world),
        "records": _text([_record_out(r) for r in _beyond(task)]),
        "tags": list(task.tags),
    }
    prefix = [_message_out(m, f"{i}") for i, m in enumerate(task.prefix)]
    return {"uuid": task.id, "messages": prefix, "data_source": task.source, "extra_info": extra}


def _text(value: JSON) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value else None


def _message_out(m: Message, at: str) -> Row:
    content = f"<think>\n{m.thinking}\n</think>\n\n{m.content}" if m.thinking else m.content
    calls = [
        {
            "id": f"call_{at}_{k}",
            "type": "function",
            "function": {"name": c.name, "arguments": json.dumps(c.arguments, ensure_ascii=False)},
        }
        for k, c in enumerate(m.calls)
    ]
    return {"role": m.role, "content": content, "tool_calls": calls}


def _item_out(item: Item) -> Row:
    return {
        "id": item.id,
        "evidence": [dict(e) for e in item.evidence],
        "focus_on": item.focus_on,
        "question": item.question,
        "pass_condition": item.pass_condition,
        "failure_examples": list(item.failure_examples),
        "required_for_next_turn": item.required_for_next_turn,
        "dependence": list(item.dependence),
        "weight": item.weight,
        "extra_info": {"rule": json.dumps(item.rule, ensure_ascii=False)} if item.rule is not None else None,
    }


def _record_out(r: Record) -> Row:
    return {"turn": r.turn, "name": r.call.name, "arguments": r.call.arguments, "result": r.result}


def _beyond(task: Task) -> list[Record]:
    """The task's records that its reference dialogue does not hold."""
    left = list(task.records)
    for record in records_of(task.reference, task.n_turns):
        if record in left:
            left.remove(record)
    return left


# --- row -> task ----------------------------------------------------------------------------------------------


def task_from_row(row: Row) -> Task:
    """A CM2 row as a task. Raises DataError naming the first field that does not fit."""
    faults = check_row(row)
    if faults:
        name = row.get("uuid") if isinstance(row, dict) else None
        raise DataError(f"row {name!r}: {faults[0]}")
    extra = row["extra_info"]
    turns = extra["interaction_kwargs"]["checklist_list"][0]
    reference = _dialogue(extra["messages"])
    more = [_record_in(r) for r in _json(extra.get("records")) or []]
    users = [m.content for m in reference if m.role == "user"]
    return Task(
        id=row["uuid"], prefix=_dialogue(row["messages"]), user_turns=tuple(users[1 : len(turns)]), tools=tuple(tool_list(extra)),
        checklist=tuple(tuple(map(_item_in, items)) for items in turns),
        records=tuple(sorted([*records_of(reference, len(turns)), *more], key=lambda r: r.turn)),
        source=row.get("data_source") or "cm2", tags=tuple(extra.get("tags") or ()), world=_json(extra.get("world")), reference=reference,
    )  # fmt: skip


def _json(value: Any) -> JSON:
    return json.loads(value) if isinstance(value, str) else value


def _dialogue(rows: Sequence[Row]) -> tuple[Message, ...]:
    messages: list[Message] = []
    names: list[str] = []
    turn = -1
    for row in rows:
        role = "tool" if row["role"] == "observation" else row["role"]
        turn += role == "user"
        calls = tuple(
            ToolCall(name=c["function"]["name"], arguments=arguments(c["function"]))
            for c in row.get("tool_calls") or []
        )
        names = [c.name for c in calls] if role == "assistant" else names
        thinking, content = (
            _split(row.get("content") or "") if role == "assistant" else ("", row.get("content") or "")
        )
        name = names.pop(0) if role == "tool" else ""
        messages.append(
            Message(role=role, content=content, thinking=thinking, calls=calls, name=name, turn=max(turn, 0))
        )
    return tuple(messages)


def _split(content: str) -> tuple[str, str]:
    """Thinking and visible text of an assistant message."""
    found = THINK.match(content)
    return (found.group(1).strip("\n"), content[found.end() :]) if found else ("", content)


def records_of(dialogue: Sequence[Message], n_turns: int) -> list[Record]:
    """Every call of the first `n_turns` turns of a dialogue with the result that follows it."""
    records: list[Record] = []
    waiting: list[ToolCall] = []
    for m in dialogue:
        waiting = list(m.calls) if m.role == "assistant" else waiting
        if m.role == "tool" and m.turn < n_turns:
            records.append(Record(turn=m.turn, call=waiting.pop(0), result=json.loads(m.content)))
    return records


def _item_in(row: Row) -> Item:
    own = row.get("extra_info") or {}
    evidence = tuple({k: v for k, v in e.items() if v is not None} for e in row.get("evidence") or [])
    return Item(
        id=row["id"], question=row["question"], pass_condition=row["pass_condition"], focus_on=row["focus_on"], weight=float(row["weight"]),
        required_for_next_turn=row["required_for_next_turn"], failure_examples=tuple(row.get("failure_examples") or ()),
        dependence=tuple(row.get("dependence") or ()), evidence=evidence, rule=_json(own.get("rule")),
    )  # fmt: skip


def _record_in(r: Row) -> Record:
    return Record(turn=r["turn"], call=ToolCall(name=r["name"], arguments=r["arguments"]), result=r["result"])
