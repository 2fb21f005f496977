"""Rows to stage, made from a seed: foreign dialogues of the CM2 kind, a known share of them spoilt.

Flows in: how many, a seed, a share. Flows out: lines of a .jsonl file, each with the reason it must be left
out for. Invariant: line k depends on the seed and k alone; a spoilt row has exactly one fault (under
`spoilt_rows.SETTINGS`), so counts a reason are exact."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from spoilt_rows import AS_TEXT, COPIES, REASONS, SETTINGS, SPOIL

from envace.config import Params, parse

Row = dict[str, Any]

WORDS = (
    "order tide harbour ticket invoice weather route pantry signal museum balance parcel garden ledger "
    "meeting "
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
            {
                "role": "assistant",
                "content": f"<think>\n{text(rng, 70)}\n</think>\n\n{text(rng, 40)}",
                "tool_calls": [],
            },
        ]
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

    focus = (
        "assistant.tool_calls",
        "assistant.content.thinking",
        "assistant.content.user_visible_reply",
        "tool.content",
    )
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
        for made, reason in (line(k, seed, share) for k in range(rows)):
            wanted[reason] += 1
            f.write(made + "\n")
    del wanted[""]
    return wanted


def params_for(folder: Path) -> Params:
    """Staging of a folder of generated rows under the rules they were made for."""
    return parse({"data": {"source": "local", "uri": str(folder), **SETTINGS}, "policy": {"kind": "tiny"}})
