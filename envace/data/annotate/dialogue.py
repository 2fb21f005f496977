"""A raw dialogue as the model is shown it, and as its evidence is checked against.

A turn counts user messages from 0. In a turn, step 0 is the user message and step k the k-th assistant
message together with the tool messages that answer it; prompts and checklists name places in no other way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from envace.data.rules import CLOSE, OPEN, read_arguments
from envace.types import JSON

Line = dict[str, JSON]


@dataclass(frozen=True)
class RawSample:
    """One row to annotate: `RawSample("a.jsonl:3", "u-1", messages=[...], tools=[...])`."""

    where: str
    uuid: str
    messages: list[dict[str, JSON]]
    """The whole dialogue; thinking stands in <think> tags."""
    tools: list[dict[str, JSON]]
    about: dict[str, JSON] = field(default_factory=dict)
    """Licence and origin, as the source states them."""

    @cached_property
    def key(self) -> str:
        """Hash of all the model is shown; place, id and licence are not part of it."""
        shown = json.dumps([list(lines(self.messages)), self.tools], sort_keys=True)
        return hashlib.sha256(shown.encode()).hexdigest()[:32]

    @cached_property
    def places(self) -> dict[tuple[int, int], dict[str, str]]:
        """What stands at each turn and step: `{(0, 1): {"assistant.tool_calls": "..."}}`."""
        found: dict[tuple[int, int], dict[str, str]] = {}
        for line in lines(self.messages):
            if "turn" in line:
                here = found.setdefault((line["turn"], line["step"]), {})
                text = line["text"] if "text" in line else json.dumps(line["call"], ensure_ascii=False)
                here[line["from"]] = f"{here[line['from']]}\n{text}" if line["from"] in here else text
        return found

    @property
    def turns(self) -> int:
        """User turns of the dialogue."""
        return sum(m["role"] == "user" for m in self.messages)

    @property
    def licence(self) -> JSON:
        """As the row states it, if it does."""
        return self.about.get("license") or self.about.get("licence")

    def verbatim(self, evidence: dict[str, JSON]) -> bool:
        """Whether a snippet stands word for word where it is said to."""
        here = self.places.get((evidence["turn"], evidence["step"]), {}).get(evidence["from"], "")
        return " ".join(evidence["snippet"].split()) in " ".join(here.split())


def lines(messages: list[dict[str, JSON]]) -> Iterator[Line]:
    """The dialogue part by part, in order; each says where it stands and who it is from."""
    turn, step, names = -1, 0, list[str]()
    for m in messages:
        role, text = m["role"], m.get("content") or ""
        if role == "system":
            yield {"from": "system", "text": text}
        elif role == "user":
            turn, step = turn + 1, 0
            yield {"turn": turn, "step": step, "from": "user.content", "text": text}
        elif role == "assistant":
            step += 1
            calls = [call["function"] for call in m.get("tool_calls") or []]
            names = [call["name"] for call in calls]
            yield from _assistant({"turn": turn, "step": step}, text, calls)
        else:
            tool = names.pop(0) if names else ""
            yield {"turn": turn, "step": step, "from": "tool.content", "tool": tool, "text": text}


def _assistant(at: Line, content: str, calls: list[dict[str, JSON]]) -> Iterator[Line]:
    before, _, visible = content.rpartition(CLOSE)  # the rules allow one pair of tags, at the start
    thinking = before.partition(OPEN)[2]
    if thinking.strip():
        yield {**at, "from": "assistant.content.thinking", "text": thinking.strip("\n")}
    if visible.strip():
        yield {**at, "from": "assistant.content.user_visible_reply", "text": visible.lstrip()}
    for call in calls:
        given = read_arguments(call)
        shown = {"name": call["name"], "arguments": call.get("arguments") if given is None else given}
        yield {**at, "from": "assistant.tool_calls", "call": shown}
