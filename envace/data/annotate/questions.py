"""What the model is asked: versioned instructions from text files, a dialogue as fenced data, the shape of a
reply.

A prompt's version is the hash of everything but the data that shapes the request, so a changed word asks anew
and an unchanged one never does. Text of a dialogue stands in one JSON line a part, without `<`, so that
nothing in it can close the tag around it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from envace.chat.text import dumps
from envace.data.annotate.dialogue import RawSample, lines
from envace.data.checklist import EVIDENCE, FOCUS
from envace.errors import DataError
from envace.types import JSON

FORM = 1
"""Of what surrounds the instructions; a change asks everything anew."""
TEXT, WHOLE, YES_NO = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
FOCUSED, FROM = {"type": "string", "enum": list(FOCUS)}, {"type": "string", "enum": list(EVIDENCE)}
Schema = dict[str, JSON]


def _schema(shape: JSON) -> Schema:
    """The JSON schema of nested fields, all required: `{"turn": WHOLE, "errors": [{"what": TEXT}]}`."""
    if isinstance(shape, list):
        return {"type": "array", "items": _schema(shape[0])}
    if isinstance(shape.get("type"), str):
        return shape
    fields = {name: _schema(part) for name, part in shape.items()}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


ERROR = {"turn": WHOLE, "step": WHOLE, "what": TEXT}
PLACE = {"turn": WHOLE, "step": WHOLE, "from": FROM, "snippet": TEXT}
ITEM = {
    "id": TEXT,
    "evidence": [PLACE],
    "focus_on": FOCUSED,
    "question": TEXT,
    "pass_condition": TEXT,
    "failure_examples": [TEXT],
    "required_for_next_turn": YES_NO,
    "dependence": [TEXT],
    "weight": {"type": "number"},
}
TURNS, VERDICTS = {"turns": [{"turn": WHOLE, "items": [ITEM]}]}, {"errors": [ERROR], "no_error": YES_NO}
LABEL: Schema = {"name": "checklists", "strict": True, "schema": _schema(TURNS)}
VERDICT: Schema = {"name": "verdict", "strict": True, "schema": _schema(VERDICTS)}
"""What a schema cannot say (sums, places that exist, circles) is checked after the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing to ask: the messages, the schema its answer should follow, the reasoning effort."""

    messages: tuple[dict[str, str], ...]
    schema: Schema
    effort: str


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The three instruction texts."""

    filter: str
    label: str
    repair: str

    @cached_property
    def filter_version(self) -> str:
        """`filter-3f2a91c04b7d`"""
        return f"filter-{_hash(self.filter, VERDICT)}"

    @cached_property
    def label_version(self) -> str:
        """`label-9be10c55aa02`"""
        return f"label-{_hash(self.label, self.repair, LABEL)}"

    def question(
        self, kind: str, sample: RawSample, effort: str, reply: str = "", faults: tuple[str, ...] = ()
    ) -> Question:
        """filter: is there an error in the dialogue? label: what must a good answer of each turn do? repair:
        the label once more, with the reply and what was wrong with it."""
        rules, schema = (self.filter, VERDICT) if kind == "filter" else (self.label, LABEL)
        tools = "\n".join(dumps(tool) for tool in sample.tools)
        talk = "\n".join(dumps(line) for line in lines(sample.messages))
        data = f'<tools>\n{tools}\n</tools>\n\n<dialogue turns="{sample.turns}">\n{talk}\n</dialogue>'
        messages = [{"role": "system", "content": rules}, {"role": "user", "content": data}]
        if kind == "repair":
            listed = "\n".join(dumps(fault) for fault in faults)
            messages += [
                {"role": "assistant", "content": reply or "(empty)"},
                {"role": "user", "content": f"{self.repair}\n\n<faults>\n{listed}\n</faults>"},
            ]
        return Question(messages=tuple(messages), schema=schema, effort=effort)


def load_prompts(folder: Path | None = None) -> Prompts:
    """The prompts of a folder, or those that come with the package. Raises DataError naming the missing
    file."""
    home = folder or resources.files(__package__) / "prompts"
    texts = {}
    for name in ("filter", "label", "repair"):
        try:
            texts[name] = (home / f"{name}.md").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise DataError(f"the prompt {name}.md in {home} cannot be read: {e}") from e
        if not texts[name]:
            raise DataError(
                f"the prompt {name}.md in {home} is empty; write its instructions or leave --prompts out"
            )
    return Prompts(**texts)


def _hash(*parts: JSON) -> str:
    return hashlib.sha256(json.dumps([FORM, *parts], sort_keys=True).encode()).hexdigest()[:12]
