"""A page for reading: some annotated rows with their dialogue, tools and items.

The page needs nothing beside itself, runs nothing, and shows every word of a row as text.
"""

from __future__ import annotations

import json
import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from envace.data.annotate.dialogue import Line, RawSample, lines
from envace.types import JSON

WHO = {
    "system": ("system", "system"),
    "user.content": ("user", "user"),
    "assistant.content.thinking": ("act", "assistant, thinking"),
    "assistant.content.user_visible_reply": ("act", "assistant"),
    "assistant.tool_calls": ("act", "assistant calls"),
    "tool.content": ("tool", "tool"),
}
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that act on a reader instead of being read."""


def page(rows: list[tuple[dict[str, JSON], RawSample]], of: int) -> str:
    """The page of some rows out of `of`."""
    env = Environment(
        loader=PackageLoader("envace.data.annotate", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["clean"] = lambda text: UNSAFE.sub("\ufffd", str(text).replace("\r\n", "\n"))
    return env.get_template("spot.html.jinja").render(rows=[_row(row, sample) for row, sample in rows], of=of)


def _row(row: dict[str, JSON], sample: RawSample) -> dict[str, JSON]:
    said, by = [_said(line) for line in lines(sample.messages)], row["annotator"]
    turns = []
    for t, items in enumerate(row["checklists"][0]):
        shown = [{**i, "evidence": [_place(e, sample) for e in i["evidence"]]} for i in items]
        turns.append({"said": [s for s in said if s["turn"] == t], "items": shown})
    return {
        "uuid": sample.uuid,
        "where": sample.where,
        "licence": row.get("license") or row.get("licence") or "licence not stated",
        "turns": turns,
        "system": [s for s in said if s["turn"] is None],
        "tools": [(t["function"]["name"], _json(t["function"])) for t in sample.tools],
        "by": f"{by['model']}, {' and '.join(by['prompts'])}" + (", repaired once" if by["repaired"] else ""),
        "usd": by["price_usd"],
    }


def _place(evidence: dict[str, JSON], sample: RawSample) -> dict[str, JSON]:
    return {**evidence, "kind": evidence["from"], "verbatim": sample.verbatim(evidence)}


def _said(line: Line) -> dict[str, JSON]:
    (kind, who), call = WHO[line["from"]], line.get("call")
    text = _json(call["arguments"]) if call else line["text"]
    if kind == "tool":
        try:
            text = _json(json.loads(text))
        except ValueError:
            pass  # shown as it stands
    return {
        "turn": line.get("turn"),
        "step": line.get("step"),
        "kind": kind,
        "who": who,
        "name": call["name"] if call else line.get("tool", ""),
        "text": text,
        "thinking": line["from"] == "assistant.content.thinking",
    }


def _json(value: JSON) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)
