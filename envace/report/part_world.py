"""The world explained with one task: what the user says, what may be called, what is true, what is checked.

Flows in: a staged task with its reference dialogue. Flows out: one section.
Invariant: everything comes from the staged data; nothing here was written by a model.
"""

from __future__ import annotations

import json

from envace.config import Params
from envace.report.results import Results
from envace.report.section import NOTHING, Section, captioned
from envace.report.table import Table, table
from envace.types import Item, Message, Task

LOOKS_AT = {
    "assistant.tool_calls": "the calls",
    "assistant.content.user_visible_reply": "the reply",
    "assistant.content.thinking": "the thinking",
    "tool.content": "the responses (grounding)",
}
SPEAKERS = {"system": "instructions", "user": "user", "assistant": "agent", "tool": "world"}


def world(results: Results, params: Params) -> Section:
    task = results.example
    title = "The desk, by one task" if params.data.source == "desk" else "The data, by one task"
    if task is None:
        return Section(id="world", title=title, lead=NOTHING)
    lead = (
        f"A task as it is staged ({task.id}). In training REHEARSE plays the world: it never sees the hidden "
        "state, only what is on record. "
        "In evaluation the world itself answers. The checklist is what a reward is made of; required items "
        "decide success."
    )
    return Section(
        id="world",
        title=title,
        lead=lead,
        tables=captioned(
            ("Tools on offer", tools(task)),
            ("The true dialogue", dialogue(task)),
            ("The checklist", checklist(task)),
        ),
    )


def tools(task: Task) -> Table | None:
    rows = []
    for tool in task.tools:
        function = tool.get("function", tool)
        takes = function.get("parameters", {}).get("properties", {})
        rows.append((f"{function.get('name')}({', '.join(takes)})", str(function.get("description", ""))))
    return table(("tool", "what it does"), rows)


def dialogue(task: Task) -> Table | None:
    """The reference dialogue, a line a message; calls as `name(argument=value)`."""
    return table(
        ("turn", "who", "what"),
        [(str(m.turn), SPEAKERS.get(m.role, m.role), _said(m)) for m in task.reference],
        note="Written by a script that knows the goal, with the true responses of the world.",
    )


def _said(m: Message) -> str:
    made = [f"{c.name}({', '.join(f'{k}={_value(v)}' for k, v in c.named.items())})" for c in m.calls]
    return " · ".join([*([m.content] if m.content else []), *made])


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def checklist(task: Task) -> Table | None:
    rows = [(str(turn), *_item(item)) for turn, items in enumerate(task.checklist) for item in items]
    columns = ("turn", "item", "question", "holds when", "looks at", "weight", "required")
    return table(
        columns, rows, note="Weights of a turn sum to 1. A turn whose required item fails ends the episode."
    )


def _item(item: Item) -> tuple[str, ...]:
    looks = LOOKS_AT.get(item.focus_on, item.focus_on)
    required = "yes" if item.required_for_next_turn else "no"
    return item.id, item.question, item.pass_condition, looks, f"{item.weight:.2f}", required
