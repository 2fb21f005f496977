"""A page for reading: some annotated rows with their dialogue, tools and items.

The page needs nothing beside itself, runs nothing, and shows every word of a row as text."""

from __future__ import annotations

import json
import re
from contextlib import suppress

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
    loader = PackageLoader("envace.data.annotate", ".")
    env = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters["clean"] = lambda text: UNSAFE.sub("\ufffd", str(text).replace("\r\n", "\n"))
    env.filters["json"] = _json
    shown = []
    for row, sample in rows:
        said = list(lines(sample.messages))
        system = [line["text"] for line in said if line["from"] == "system"]
        dialogue = [_said(line) for line in said if "turn" in line]
        shown.append({"row": row, "sample": sample, "system": system, "said": dialogue})
    return env.get_template("spot.html.jinja").render(rows=shown, of=of)


def _said(line: Line) -> dict[str, JSON]:
    """A part of the dialogue, its JSON laid out."""
    (kind, who), call = WHO[line["from"]], line.get("call", {})
    text = _json(call["arguments"]) if call else line["text"]
    if kind == "tool":
        with suppress(ValueError):  # text that is no JSON is shown as it stands
            text = _json(json.loads(text))
    return line | {"kind": kind, "who": who, "name": call.get("name") or line.get("tool", ""), "text": text}


def _json(value: JSON) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)
