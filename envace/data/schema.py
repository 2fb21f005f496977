"""Between CM2 rows and tasks.

Flows in: a row (plain data or read from parquet) or a task. Flows out: the other one, or the row in its one
stored form. Invariant: `task_from_row(row_from_task(task)) == task` for every task with a reference dialogue,
also through parquet; `stored(examine(row)) == row_from_task(task_from_row(row))`, at a tenth of the cost.
Rows of a foreign source bring no world and no rules; both are extensions inside `extra_info`.

A stored row in short: `uuid`, `messages` (up to the first user message), `data_source`, `extra_info` with
`messages` (the whole reference dialogue, arguments as JSON text), `tools` (JSON text),
`interaction_kwargs.checklist_list` [variant][turn][item], `original_index`, and the extensions `world`,
`records` (those the dialogue does not hold), `tags` and, per item, `extra_info.rule`; all three of `world`,
`records` and `rule` are JSON text. Where a row came from (KEYS_OF_ORIGIN) is no part of a task: the fields
are there and empty until staging fills them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from envace.data import jsontext
from envace.data.check import CheckedRow, examine
from envace.data.checklist import first_variant
from envace.data.row_forms import Row
from envace.errors import DataError
from envace.types import JSON, Item, Message, Record, Task, ToolCall

OPEN, CLOSE = "<think>", "</think>"
SOURCE = "cm2"  # of a row that names none
KEYS_OF_ORIGIN = ("licence", "origin", "generator", "annotator")


# --- task -> row
# ----------------------------------------------------------------------------------------------


def row_from_task(task: Task) -> Row:
    """A task as a CM2 row. Raises DataError when it has no reference dialogue."""
    if not task.reference:
        raise DataError(f"task {task.id} has no reference dialogue, so it cannot be written as a row")
    beyond = list(task.records)  # those that the dialogue does not hold
    for record in records_of(task.reference, task.n_turns):
        if record in beyond:
            beyond.remove(record)
    return _row(
        uuid=task.id,
        prefix=[_message_out(m, i) for i, m in enumerate(task.prefix)],
        source=task.source,
        messages=[_message_out(m, i) for i, m in enumerate(task.reference)],
        tools=list(task.tools),
        items=[[_item_out(i) for i in items] for items in task.checklist],
        world=task.world,
        records=[
            {"turn": r.turn, "name": r.call.name, "arguments": r.call.arguments, "result": r.result}
            for r in beyond
        ],
        tags=list(task.tags),
    )


def _row(
    *,
    uuid: str,
    prefix: list[Row],
    source: str,
    messages: list[Row],
    tools: list[JSON],
    items: list[list[Row]],
    world: JSON,
    records: list[Row],
    tags: list[str],
) -> Row:
    extra = {
        "messages": messages,
        "tools": jsontext.write(tools),
        "interaction_kwargs": {"name": "checklist", "checklist_list": [items]},
        "need_tools_kwargs": True,
        "original_index": uuid,
        "world": jsontext.write(world) if world else None,
        "records": jsontext.write(records) if records else None,
        "tags": tags,
        **dict.fromkeys(KEYS_OF_ORIGIN),
    }
    return {"uuid": uuid, "messages": prefix, "data_source": source, "extra_info": extra}


def _message_out(m: Message, i: int) -> Row:
    calls = [_call_out(i, k, c.name, c.arguments) for k, c in enumerate(m.calls)]
    return {"role": m.role, "content": _with_thoughts(m.thinking, m.content), "tool_calls": calls}


def _call_out(i: int, k: int, name: str, arguments: JSON) -> Row:
    function = {"name": name, "arguments": jsontext.write(arguments)}
    return {"id": f"call_{i}_{k}", "type": "function", "function": function}


def _with_thoughts(thinking: str, content: str) -> str:
    return f"{OPEN}\n{thinking}\n{CLOSE}\n\n{content}" if thinking else content


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
        "extra_info": {"rule": jsontext.write(item.rule)} if item.rule is not None else None,
    }


# --- row -> stored row
# ----------------------------------------------------------------------------------------


def stored(checked: CheckedRow) -> Row:
    """A row without faults in the one form that is stored, whatever form it came in."""
    form = checked.form
    arguments, rules = iter(checked.arguments), iter(checked.rules)
    records = [{k: r[k] for k in ("turn", "name", "arguments", "result")} for r in checked.records or ()]
    return _row(
        uuid=form.uuid,
        prefix=[_message_in_row(m | {"tool_calls": ()}, i, arguments) for i, m in enumerate(form.prefix)],
        source=form.source or SOURCE,
        messages=[_message_in_row(m, i, arguments) for i, m in enumerate(form.messages)],
        tools=form.tools,
        items=[[_item_in_row(i, next(rules)) for i in turn] for turn in first_variant(form.checklist)],
        world=checked.world,
        records=sorted(records, key=lambda r: r["turn"]),
        tags=list((form.extra or {}).get("tags") or ()),
    )


def _message_in_row(m: Row, i: int, arguments: Iterator[JSON]) -> Row:
    role, content = m["role"], m.get("content") or ""
    if role == "assistant" and OPEN in content:
        content = _with_thoughts(*_split(content))
    calls = [
        _call_out(i, k, c["function"]["name"], next(arguments))
        for k, c in enumerate(m.get("tool_calls") or ())
    ]
    return {"role": "tool" if role == "observation" else role, "content": content, "tool_calls": calls}


def _item_in_row(item: Row, rule: JSON) -> Row:
    return {
        "id": item["id"],
        "evidence": [{k: v for k, v in e.items() if v is not None} for e in item.get("evidence") or ()],
        "focus_on": item["focus_on"],
        "question": item["question"],
        "pass_condition": item["pass_condition"],
        "failure_examples": list(item.get("failure_examples") or ()),
        "required_for_next_turn": item["required_for_next_turn"],
        "dependence": list(item.get("dependence") or ()),
        "weight": float(item["weight"]),
        "extra_info": None if rule is None else {"rule": jsontext.write(rule)},
    }


# --- row -> task
# ----------------------------------------------------------------------------------------------


def task_from_row(row: JSON) -> Task:
    """A CM2 row, in any form, as a task. Raises DataError naming the first field that does not fit."""
    checked = examine(row)
    if checked.faults:
        name = row.get("uuid") if isinstance(row, dict) else None
        raise DataError(f"row {name!r}: {checked.faults[0]}")
    form = checked.form
    turns, rules = first_variant(form.checklist), iter(checked.rules)
    reference = _dialogue(form.messages, iter(checked.arguments))
    more = [
        Record(turn=r["turn"], call=ToolCall(name=r["name"], arguments=r["arguments"]), result=r["result"])
        for r in checked.records or ()
    ]
    return Task(
        id=form.uuid,
        prefix=_dialogue([m | {"tool_calls": ()} for m in form.prefix], iter(())),
        user_turns=tuple([m.content for m in reference if m.role == "user"][1 : len(turns)]),
        tools=tuple(form.tools),
        checklist=tuple(tuple(_item_in(i, next(rules)) for i in items) for items in turns),
        records=tuple(sorted([*records_of(reference, len(turns)), *more], key=lambda r: r.turn)),
        source=form.source or SOURCE,
        tags=tuple((form.extra or {}).get("tags") or ()),
        world=checked.world,
        reference=reference,
    )


def _dialogue(rows: Sequence[Row], arguments: Iterator[JSON]) -> tuple[Message, ...]:
    messages: list[Message] = []
    names: list[str] = []
    turn = -1
    for row in rows:
        role = "tool" if row["role"] == "observation" else row["role"]
        turn += role == "user"
        calls = tuple(
            ToolCall(name=c["function"]["name"], arguments=next(arguments))
            for c in row.get("tool_calls") or ()
        )
        names = [c.name for c in calls] if role == "assistant" else names
        thinking, content = "", row.get("content") or ""
        if role == "assistant":
            thinking, content = _split(content)
        name = names.pop(0) if role == "tool" else ""
        messages.append(
            Message(role=role, content=content, thinking=thinking, calls=calls, name=name, turn=max(turn, 0))
        )
    return tuple(messages)


def _split(content: str) -> tuple[str, str]:
    """Thinking and visible text of an assistant message."""
    start = content.lstrip()
    thinking, closed, visible = start.removeprefix(OPEN).partition(CLOSE)
    return (thinking.strip("\n"), visible.lstrip()) if closed and start.startswith(OPEN) else ("", content)


def records_of(dialogue: Sequence[Message], n_turns: int) -> list[Record]:
    """Every call of the first `n_turns` turns of a dialogue with the result that follows it."""
    records: list[Record] = []
    waiting: list[ToolCall] = []
    for m in dialogue:
        waiting = list(m.calls) if m.role == "assistant" else waiting
        if m.role == "tool" and m.turn < n_turns:
            records.append(Record(turn=m.turn, call=waiting.pop(0), result=json.loads(m.content)))
    return records


def _item_in(item: Row, rule: JSON) -> Item:
    row = _item_in_row(item, None) | {"rule": rule}
    del row["extra_info"]
    return Item(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
