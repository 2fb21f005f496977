"""The instructions the model is given, as versioned text files.

Flows in: a folder with filter.md, label.md and repair.md. Flows out: `Prompts`; a sample as fenced data.
Invariant: a prompt's version is the hash of everything but the data that shapes the request, so a changed word
asks anew and an unchanged one never does. Text of a dialogue stands in one JSON line a part, without `<`, so that
nothing in it can close the tag around it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from envace.data.annotate.dialogue import Sample, lines
from envace.data.annotate.schemas import LABEL, VERDICT
from envace.data.annotate.wire import Question
from envace.errors import DataError
from envace.judge.llm_requests import fenced

NAMES = ("filter", "label", "repair")
FORM = 1  # of what surrounds the instructions; a change asks everything anew


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

    def ask_filter(self, sample: Sample, effort: str) -> Question:
        """Is there any error in the dialogue?"""
        return Question(messages=_messages(self.filter, sample), schema=VERDICT, effort=effort)

    def ask_label(self, sample: Sample, effort: str) -> Question:
        """What must a good answer of each turn do?"""
        return Question(messages=_messages(self.label, sample), schema=LABEL, effort=effort)

    def ask_repair(self, sample: Sample, effort: str, reply: str, faults: tuple[str, ...]) -> Question:
        """The same once more, with what was wrong."""
        listed = "\n".join(fenced(f) for f in faults)
        again = (
            {"role": "assistant", "content": reply or "(empty)"},
            {"role": "user", "content": f"{self.repair}\n\n<faults>\n{listed}\n</faults>"},
        )
        return Question(messages=(*_messages(self.label, sample), *again), schema=LABEL, effort=effort)


def load(folder: Path | None = None) -> Prompts:
    """The prompts of a folder, or those that come with the package. Raises DataError naming the missing file."""
    home = folder or resources.files(__package__) / "prompts"
    texts = {}
    for name in NAMES:
        try:
            texts[name] = (home / f"{name}.md").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise DataError(f"the prompt {name}.md in {home} cannot be read: {e}") from e
        if not texts[name]:
            raise DataError(
                f"the prompt {name}.md in {home} is empty; write its instructions or leave --prompts out"
            )
    return Prompts(**texts)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps([FORM, *parts], sort_keys=True).encode()).hexdigest()[:12]


def _messages(rules: str, sample: Sample) -> tuple[dict[str, str], ...]:
    tools = "\n".join(fenced(t) for t in sample.tools)
    talk = "\n".join(fenced(line) for line in lines(sample.messages))
    data = f'<tools>\n{tools}\n</tools>\n\n<dialogue turns="{sample.turns}">\n{talk}\n</dialogue>'
    return {"role": "system", "content": rules}, {"role": "user", "content": data}
