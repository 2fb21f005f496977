"""A page for reading: some annotated rows with their dialogue, tools and items.

Flows in: annotated rows and the samples they were made from. Flows out: one HTML file.
Invariant: the page needs nothing beside itself, runs nothing, and shows every word of a row as text.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from envace.data.annotate.dialogue import Sample, lines
from envace.data.annotate.tally import verbatim
from envace.report.episode import clean, style
from envace.types import JSON

WHO = {
    "system": ("system", "system"),
    "user.content": ("user", "user"),
    "assistant.content.thinking": ("act", "assistant, thinking"),
    "assistant.content.user_visible_reply": ("act", "assistant"),
    "assistant.tool_calls": ("act", "assistant calls"),
    "tool.content": ("tool", "tool"),
}


def page(rows: list[tuple[dict[str, JSON], Sample]], of: int) -> str:
    """The page of some rows out of `of`."""
    return _template().render(style=style(), rows=[_row(row, sample) for row, sample in rows], of=of)


def _row(row: dict[str, JSON], sample: Sample) -> dict[str, Any]:
    said = [_said(line) for line in lines(sample.messages)]
    turns = [
        {"said": [s for s in said if s["turn"] == t], "items": [_item(i, sample) for i in items]}
        for t, items in enumerate(row["checklists"][0])
    ]
    licence = row.get("license") or row.get("licence") or "licence not stated"
    by = row["annotator"]
    return {
        "uuid": sample.uuid, "where": sample.where, "licence": licence, "turns": turns,
        "system": [s for s in said if s["turn"] is None],
        "tools": [(t["function"]["name"], _json(t["function"])) for t in sample.tools],
        "by": f"{by['model']}, {' and '.join(by['prompts'])}" + (", repaired once" if by["repaired"] else ""),
        "usd": by["price_usd"],
    }  # fmt: skip


def _said(line: dict[str, JSON]) -> dict[str, Any]:
    kind, who = WHO[line["from"]]
    call = line.get("call")
    text = _json(call["arguments"]) if call else line["text"]
    return {
        "turn": line.get("turn"), "step": line.get("step"), "kind": kind, "who": who,
        "name": call["name"] if call else line.get("tool", ""), "text": _pretty(text) if kind == "tool" else text,
        "thinking": line["from"] == "assistant.content.thinking",
    }  # fmt: skip


def _item(item: dict[str, JSON], sample: Sample) -> dict[str, Any]:
    evidence = [{**e, "kind": e["from"], "verbatim": verbatim(e, sample)} for e in item["evidence"]]
    return {**item, "evidence": evidence}


def _pretty(text: str) -> str:
    try:
        return _json(json.loads(text))
    except ValueError:
        return text


def _json(value: JSON) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("envace.data.annotate", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["clean"] = clean
    return env.get_template("spot.html.jinja")
