"""Between CM2 rows and tasks.

Flows in: a row (plain data or read from parquet) or a task. Flows out: the other one. Invariant:
`task_from_row(row_from_task(task)) == task` for every task with a reference dialogue, also through parquet.
A row in any form becomes the one stored form by way of its task. Rows of a foreign source bring no world and
no rules; both are extensions inside `extra_info`.

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
from envace.data.rules import CLOSE, OPEN
from envace.errors import DataError
from envace.types import JSON, Item, Message, Record, Task, ToolCall

SOURCE = "cm2"  # of a row that names none
KEYS_OF_ORIGIN = ("licence", "origin", "generator", "annotator")


def row_from_task(task: Task) -> Row:
    """A task as a CM2 row. Raises DataError when it has no reference dialogue."""
    if not task.reference:
        raise DataError(f"task {task.id} has no reference dialogue, so it cannot be written as a row")
    beyond = list(task.records)  # those that the dialogue does not hold
    for record in records_of(task.reference, task.n_turns):
        if record in beyond:
            beyond.remove(record)
    records = [
        {"turn": r.turn, "name": r.call.name, "arguments": r.call.arguments, "result": r.result}
        for r in beyond
    ]
    items = [[_item_out(i) for i in items] for items in task.checklist]
    extra = {
        "messages": [_message_out(m, i) for i, m in enumerate(task.reference)],
        "tools": jsontext.write(list(task.tools)),
        "interaction_kwargs": {"name": "checklist", "checklist_list": [items]},
        "need_tools_kwargs": True,
        "original_index": task.id,
        "world": jsontext.write(task.world) if task.world else None,
        "records": jsontext.write(records) if records else None,
        "tags": list(task.tags),
        **dict.fromkeys(KEYS_OF_ORIGIN),
    }
    prefix = [_message_out(m, i) for i, m in enumerate(task.prefix)]
    return {"uuid": task.id, "messages": prefix, "data_source": task.source, "extra_info": extra}


def _message_out(m: Message, i: int) -> Row:
    content = f"{OPEN}\n{m.thinking}\n{CLOSE}\n\n{m.content}" if m.thinking else m.content
    calls = [
        {
            "id": f"call_{i}_{k}",
            "type": "function",
            "function": {"name": c.name, "arguments": jsontext.write(c.arguments)},
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
        "extra_info": {"rule": jsontext.write(item.rule)} if item.rule is not None else None,
    }


def task_from_row(row: JSON) -> Task:
    """A CM2 row, in any form, as a task. Raises DataError naming the first field that does not fit."""
    checked = examine(row)
    if checked.faults:
        name = row.get("uuid") if isinstance(row, dict) else None
        raise DataError(f"row {name!r}: {checked.faults[0]}")
    return task_of(checked)


def task_of(checked: CheckedRow) -> Task:
    """The task of a row without faults."""
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
    for row in _by_call(rows):
        role = "tool" if row["role"] == "observation" else row["role"]
        turn += role == "user"
        calls = tuple(
            ToolCall(name=c["function"]["name"], arguments=next(arguments))
            for c in row.get("tool_calls") or ()
        )
        names = [c.name for c in calls] if role == "assistant" else names
        thinking, content = "", row.get("content") or ""
        start = content.lstrip()
        if role == "assistant" and start.startswith(OPEN):
            before, closed, visible = start.removeprefix(OPEN).partition(CLOSE)
            thinking, content = (before.strip("\n"), visible.lstrip()) if closed else ("", content)
        name = names.pop(0) if role == "tool" else ""
        messages.append(
            Message(role=role, content=content, thinking=thinking, calls=calls, name=name, turn=max(turn, 0))
        )
    return tuple(messages)


def _by_call(rows: Sequence[Row]) -> list[Row]:
    """The messages, tool messages in the order of the calls whose ids they name.

    Ids hold among the calls of one message: many programs count them anew in every turn. Answers without ids
    stand as they came."""
    ordered = list(rows)
    for i, row in enumerate(rows):
        ids = [c.get("id") for c in row.get("tool_calls") or ()]
        answers = rows[i + 1 : i + 1 + len(ids)]
        place = {name: k for k, name in enumerate(ids) if isinstance(name, str)}
        named = {name for m in answers if isinstance(name := m.get("tool_call_id"), str)}
        if len(ids) > 1 and len(place) == len(ids) and named == place.keys():
            ordered[i + 1 : i + 1 + len(ids)] = sorted(answers, key=lambda m: place[m["tool_call_id"]])
    return ordered


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
    evidence = item.get("evidence") or ()
    return Item(
        id=item["id"],
        evidence=tuple({k: v for k, v in e.items() if v is not None} for e in evidence),
        focus_on=item["focus_on"],
        question=item["question"],
        pass_condition=item["pass_condition"],
        failure_examples=tuple(item.get("failure_examples") or ()),
        required_for_next_turn=item["required_for_next_turn"],
        dependence=tuple(item.get("dependence") or ()),
        weight=float(item["weight"]),
        rule=rule,
    )
