"""Rows to stage, made from a seed: foreign dialogues of the CM2 kind, a known share of them spoilt.

Flows in: how many, a seed, a share. Flows out: lines of a .jsonl file, each with the reason it must be left out for.
Invariant: line k depends on the seed and k alone; a spoilt row has exactly one fault, so counts a reason are exact.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

WORDS = (
    "order tide harbour ticket invoice weather route pantry signal museum balance parcel garden ledger meeting "
    "train hotel window battery engine recipe library festival account station bridge market island concert"
).split()
TOOLS = 400  # distinct tools in the world


def text(rng: random.Random, words: int) -> str:
    """Prose of so many words."""
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


def tool(k: int) -> Row:
    """The k-th tool of the world."""
    rng = random.Random(f"tool/{k}")
    properties = {
        f"{WORDS[(k + j) % len(WORDS)]}_{j}": {"type": kind, "description": text(rng, 9)}
        for j, kind in enumerate(rng.sample(["string", "integer", "number", "boolean"], 3))
    }
    return {
        "type": "function",
        "function": {
            "name": f"get_{WORDS[k % len(WORDS)]}_{k}",
            "description": text(rng, 14),
            "parameters": {"type": "object", "properties": properties, "required": list(properties)[:2]},
        },
    }


VALUES: dict[str, Any] = {"string": "north", "integer": 7, "number": 2.5, "boolean": True}


def call(rng: random.Random, offered: list[Row], at: str) -> Row:
    """A call of one of the tools that fits its schema."""
    function = rng.choice(offered)["function"]
    arguments = {n: VALUES[p["type"]] for n, p in function["parameters"]["properties"].items()}
    return {
        "id": f"call_{at}",
        "type": "function",
        "function": {"name": function["name"], "arguments": json.dumps(arguments)},
    }


def dialogue(rng: random.Random, offered: list[Row], turns: int) -> list[Row]:
    """A whole dialogue with thoughts, two calls at once in each turn."""
    said: list[Row] = [{"role": "system", "content": text(rng, 20), "tool_calls": []}]
    for turn in range(turns):
        calls = [call(rng, offered, f"{turn}_{k}") for k in range(2)]
        results = [json.dumps({w: text(rng, 6) for w in rng.sample(WORDS, 8)}) for _ in calls]
        said += [
            {"role": "user", "content": text(rng, 30), "tool_calls": []},
            {"role": "assistant", "content": f"<think>\n{text(rng, 110)}\n</think>\n\n", "tool_calls": calls},
            *({"role": "tool", "content": r, "tool_calls": None} for r in results),
            {"role": "assistant", "content": f"<think>\n{text(rng, 70)}\n</think>\n\n{text(rng, 40)}", "tool_calls": []},
        ]  # fmt: skip
    return said


def checklist(rng: random.Random, turns: int) -> list[list[Row]]:
    """Four items a turn, the last grounded in a result that another depends on."""

    def item(k: int, focus: str) -> Row:
        return {
            "id": f"C{k}",
            "evidence": [{"turn": 0, "step": 1, "from": focus, "snippet": text(rng, 8)}],
            "focus_on": focus,
            "question": text(rng, 14),
            "pass_condition": text(rng, 18),
            "failure_examples": [text(rng, 9), text(rng, 9)],
            "required_for_next_turn": k == 0,
            "dependence": ["C3"] if k == 2 else [],
            "weight": 0.25,
            "extra_info": {"price_usd": 0.1},
        }

    focus = ("assistant.tool_calls", "assistant.content.thinking", "assistant.content.user_visible_reply", "tool.content")  # fmt: skip
    return [[item(k, f) for k, f in enumerate(focus)] for _ in range(turns)]


def good_row(k: int, seed: int) -> Row:
    """A finished row of 12 KB or more without a fault."""
    rng = random.Random(f"{seed}/{k}")
    turns = rng.choice((2, 2, 3))
    offered = [tool(t) for t in rng.sample(range(TOOLS), 6)]
    messages = dialogue(rng, offered, turns)
    uuid = f"{rng.getrandbits(128):032x}"
    return {
        "uuid": uuid,
        "messages": copy.deepcopy(messages[:2]),
        "data_source": "generated",
        "checklists": [],
        "extra_info": {
            "messages": messages,
            "tools": json.dumps(offered),
            "interaction_kwargs": {"name": "checklist", "checklist_list": [checklist(rng, turns)]},
            "need_tools_kwargs": True,
            "original_index": uuid,
        },
    }


# --- one fault a row --------------------------------------------------------------------------------------------


def _tools(row: Row, change: Callable[[list[Row]], Any]) -> None:
    tools = json.loads(row["extra_info"]["tools"])
    change(tools)
    row["extra_info"]["tools"] = json.dumps(tools)


def _said(row: Row, role: str) -> Row:
    return next(m for m in row["extra_info"]["messages"] if m["role"] == role)


def _items(row: Row) -> list[Row]:
    return row["extra_info"]["interaction_kwargs"]["checklist_list"][0][0]


def _arguments(row: Row, **changes: Any) -> None:
    function = _said(row, "assistant")["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]) | changes)


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
    "wrong_type": (lambda r: r.update(uuid=7), lambda r: _said(r, "user").update(content=[])),
    "bad_tools": (
        lambda r: r["extra_info"].update(tools="["),
        lambda r: _tools(r, lambda t: t[0]["function"]["parameters"].update(type="array")),
        lambda r: _tools(r, lambda t: t[0]["function"]["parameters"].update(required="all")),
    ),
    "duplicate_tool": (lambda r: _tools(r, lambda t: t.append(t[0])),),
    "role_order": (_end, lambda r: r["extra_info"]["messages"].insert(2, _said(r, "user"))),
    "result_count": (lambda r: r["extra_info"]["messages"].pop(3),),
    "unknown_tool": (lambda r: _said(r, "assistant")["tool_calls"][0]["function"].update(name="get_lost"),),
    "bad_arguments": (lambda r: _arguments(r, surplus=1),),
    "result_not_json": (lambda r: _said(r, "tool").update(content="north, 7"), lambda r: _said(r, "tool").update(content="NaN")),
    "response_tag": (lambda r: _said(r, "assistant").update(content="<tool_response>1</tool_response>"),),
    "bad_thinking": (lambda r: _said(r, "assistant").update(content="<think>\nnorth"), lambda r: _said(r, "tool").update(content='"<think>"')),
    "empty_content": (lambda r: _said(r, "system").update(content=" ") or r["messages"][0].update(content=" "),),
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
    "turn_count": (lambda r: r["extra_info"]["interaction_kwargs"]["checklist_list"][0].extend([_items(r)] * 3),),
    "bad_extension": (lambda r: r["extra_info"].update(world="[1]"),),
    "prompt_too_long": (lambda r: [m.update(content=text(random.Random(0), 4000)) for m in (_said(r, "user"), r["messages"][1])],),
}  # fmt: skip
AS_TEXT: dict[str, Callable[[str], str]] = {
    "bad_json": lambda line: line[: len(line) // 2],
    "bad_text": lambda line: line.replace('"generated"', '"half \\ud800"', 1),
}
COPIES = ("duplicate_id", "duplicate_content")
REASONS = (*SPOIL, *AS_TEXT, *COPIES)


def line(k: int, seed: int, share: float) -> tuple[str, str]:
    """Line k and the reason it is left out for, or an empty one."""
    every = round(1 / share) if share else 0
    if not every or k % every:
        return json.dumps(good_row(k, seed)), ""
    n, reason = k // every // len(REASONS), REASONS[k // every % len(REASONS)]
    if reason in COPIES:
        row = good_row(k - 1 if k else 1, seed)
        if reason == "duplicate_content":
            row["uuid"] = row["extra_info"]["original_index"] = "~" + row["uuid"]  # sorts behind
        return json.dumps(row), reason
    row = good_row(k, seed)
    if reason in AS_TEXT:
        return AS_TEXT[reason](json.dumps(row)), reason
    SPOIL[reason][n % len(SPOIL[reason])](row)
    return json.dumps(row), reason


def write(path: Path, rows: int, seed: int = 0, share: float = 0.05) -> Counter[str]:
    """Write a .jsonl file; return how many of its rows must be left out for each reason."""
    wanted: Counter[str] = Counter()
    with path.open("w", encoding="utf-8") as f:
        for made, reason in _lines(rows, seed, share):
            wanted[reason] += 1
            f.write(made + "\n")
    del wanted[""]
    return wanted


def _lines(rows: int, seed: int, share: float) -> Iterator[tuple[str, str]]:
    return (line(k, seed, share) for k in range(rows))
