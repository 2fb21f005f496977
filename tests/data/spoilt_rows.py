"""Ways to spoil a row, each with exactly one fault.

Flows in: a good row of made_rows.py. Flows out: the same row, spoilt in place for a reason. Invariant: under
`SETTINGS` a spoilt row is left out for the one reason its function stands under, and for no other; every
reason that staging knows is here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

# Of `data`: without them three reasons never hold.
SETTINGS = {
    "max_first_prompt_tokens": 3500,
    "require_thinking": True,
    "strict_tool_schema": True,
    "select": {"turns": {1: 1.0}},
}
ONE_TURN = 6  # messages of a system message and the first turn


def _tools(row: Row, change: Callable[[list[Row]], Any]) -> None:
    tools = json.loads(row["extra_info"]["tools"])
    change(tools)
    row["extra_info"]["tools"] = json.dumps(tools)


def _said(row: Row, role: str) -> Row:
    return next(m for m in row["extra_info"]["messages"] if m["role"] == role)


def _items(row: Row) -> list[Row]:
    return row["extra_info"]["interaction_kwargs"]["checklist_list"][0][0]


def _arguments(row: Row, change: Callable[[Row], Any]) -> None:
    function = _said(row, "assistant")["tool_calls"][0]["function"]
    arguments = json.loads(function["arguments"])
    change(arguments)
    function["arguments"] = json.dumps(arguments)


def _loose(row: Row, change: Callable[[Row, Row], Any]) -> None:
    """Change the first tool: its function, and the last of its parameters."""
    _tools(
        row, lambda t: change(t[0]["function"], [*t[0]["function"]["parameters"]["properties"].values()][-1])
    )


def _one_turn(row: Row) -> None:
    extra = row["extra_info"]
    del extra["messages"][ONE_TURN:]
    del extra["interaction_kwargs"]["checklist_list"][0][1:]


def _circle(row: Row) -> None:
    for item, other in zip(_items(row)[2:], ("C3", "C2")):
        item.update(focus_on="tool.content", dependence=[other])


def _raw(row: Row) -> None:
    extra = row.pop("extra_info")
    row.pop("checklists")
    row.update(messages=extra["messages"], metadata=json.dumps({"tools": json.loads(extra["tools"])}))


def _end(row: Row) -> None:
    row["extra_info"]["messages"].pop()


SPOIL: dict[str, tuple[Callable[[Row], Any], ...]] = {
    "missing_field": (lambda r: r.pop("uuid"), lambda r: r.update(extra_info=None)),
    "wrong_type": (
        lambda r: r.update(uuid=7),
        lambda r: [m.update(content=[]) for m in (_said(r, "user"), r["messages"][1])],
    ),
    "bad_tools": (
        lambda r: r["extra_info"].update(tools="["),
        lambda r: _tools(r, lambda t: t[0]["function"]["parameters"].update(type="array")),
        lambda r: _tools(r, lambda t: t[0]["function"]["parameters"].update(minProperties="few")),
    ),
    "duplicate_tool": (lambda r: _tools(r, lambda t: t.append(t[0])),),
    "loose_tool": (
        lambda r: _loose(r, lambda f, p: f.pop("description")),
        lambda r: _loose(r, lambda f, p: f["parameters"].pop("required")),
        lambda r: _loose(r, lambda f, p: f["parameters"].pop("type")),
        lambda r: _loose(r, lambda f, p: p.update(type=[p["type"], "null"])),
        lambda r: _loose(r, lambda f, p: f["parameters"]["properties"].update(more=p | {"enum": [1, 2]})),
    ),
    "role_order": (_end, lambda r: r["extra_info"]["messages"].insert(2, _said(r, "user"))),
    "result_count": (lambda r: r["extra_info"]["messages"].pop(3),),
    "unknown_tool": (lambda r: _said(r, "assistant")["tool_calls"][0]["function"].update(name="get_lost"),),
    "bad_arguments": (
        lambda r: _arguments(r, lambda a: a.update(surplus=1)),
        lambda r: _arguments(r, lambda a: a.pop(next(iter(a)))),
        lambda r: _arguments(r, lambda a: a.update(dict.fromkeys(a, []))),
    ),
    "result_not_json": (
        lambda r: _said(r, "tool").update(content="north, 7"),
        lambda r: _said(r, "tool").update(content="NaN"),
    ),
    "response_tag": (
        lambda r: _said(r, "assistant").update(
            content="<think>\nnorth\n</think>\n\n<tool_response>1</tool_response>"
        ),
    ),
    "bad_thinking": (
        lambda r: _said(r, "assistant").update(content="<think>\nnorth"),
        lambda r: _said(r, "tool").update(content='"<think>"'),
    ),
    "no_thinking": (
        lambda r: _said(r, "assistant").update(content=""),
        lambda r: r["extra_info"]["messages"][-1].update(content="North."),
    ),
    "empty_content": (
        lambda r: _said(r, "system").update(content=" ") or r["messages"][0].update(content=" "),
    ),
    "prefix_mismatch": (lambda r: r["messages"][1].update(content="Something else."),),
    "no_checklist": (_raw,),
    "bad_checklist": (
        _circle,
        lambda r: _items(r)[2].update(dependence=["C9"]),
        lambda r: _items(r)[2].update(dependence=["C0"]),
        lambda r: _items(r)[0].update(focus_on="tools"),
        lambda r: _items(r)[0]["evidence"][0].update(turn=-1),
    ),
    "bad_weights": (lambda r: _items(r)[0].update(weight=0.2),),
    "bad_rule": (lambda r: _items(r)[0].update(extra_info={"rule": '{"kind": "x"}'}),),
    "turn_count": (
        lambda r: r["extra_info"]["interaction_kwargs"]["checklist_list"][0].extend([_items(r)] * 3),
    ),
    "bad_extension": (lambda r: r["extra_info"].update(world="[1]"),),
    "prompt_too_long": (
        lambda r: [m.update(content="north " * 4000) for m in (_said(r, "user"), r["messages"][1])],
    ),
    "not_selected": (_one_turn,),
}
AS_TEXT: dict[str, Callable[[str], str]] = {
    "bad_json": lambda line: line[: len(line) // 2],
    "bad_text": lambda line: line.replace('"generated"', '"half \\ud800"', 1),
}
COPIES = ("duplicate_id", "duplicate_content")
REASONS = (*SPOIL, *AS_TEXT, *COPIES)
