"""Prompt sets: directories of text files, versioned by hash.

Flows in: the files of a set and what one call is about. Flows out: the system block ACT gets on top of the
task, and the REHEARSE prompt as two messages: fixed rules, then sections with what is known.
Invariant: stable parts come first; text that a model, a tool or a data set wrote stands inside sections as
JSON with every `<` escaped, so it can neither close a section nor forge a tag; cutting never touches the
rules.

Files of a set: settings.txt, rehearse_rules.txt, rehearse_check.txt (added when calls are validated by
rehearsal), section_{tools,records,history,reply,call}.txt (a missing one leaves the section out), memory.txt,
act.txt (optional). `$body` stands for what is filled in, once in each section and in the memory; a `$` that
is meant is written `$$` there. A set that breaks this is refused when it is loaded, not in the middle of an
episode.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from string import Template
from types import MappingProxyType

import yaml

from envace.chat.text import dumps, escaped, split_thinking
from envace.chat.transcript import matches
from envace.errors import DataError
from envace.io.yaml_text import read_yaml
from envace.rollout.few_shot import nearness
from envace.rollout.interfaces import CallContext
from envace.types import Memory, Message, Record, ToolCall, replace

ROOT = Path(__file__).parent.parent / "prompts"
SECTIONS = ("tools", "records", "history", "reply", "call")
CUT_ORDER = ("history", "records", "tools")  # oldest history, records that do not match, tools
HISTORIES = ("full", "calls", "none")
NEEDED = ("settings", "rehearse_rules", "rehearse_check", "section_call", "memory")


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """What a set shows. Raises ValueError for a value that means nothing."""

    max_records: int = 0  # 0 shows every record
    history: str = "full"  # full | calls | none
    max_history: int = 0  # newest lines kept, 0 keeps all
    tools: bool = True
    schema: bool = True
    reply: bool = True

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if type(value) is not type(f.default) or (type(value) is int and value < 0):
                raise ValueError(f"{f.name} is {value!r}, must be like {f.default!r}")
        if self.history not in HISTORIES:
            raise ValueError(f"history is {self.history!r}, must be one of {', '.join(HISTORIES)}")


@dataclass(frozen=True, slots=True)
class RehearsalPrompt:
    """One REHEARSE prompt before it is cut. `cuts` lists (section, line) in the order in which lines go."""

    rules: str
    lines: Mapping[str, tuple[str, ...]]
    cuts: tuple[tuple[str, int], ...]
    texts: Mapping[str, str]

    def messages(self, drop: int = 0) -> list[Message]:
        """The two messages, with the first `drop` cuts applied."""
        gone = set(self.cuts[:drop])
        parts = []
        for name in SECTIONS:
            kept = [line for i, line in enumerate(self.lines[name]) if (name, i) not in gone]
            if kept and (text := self.texts.get(f"section_{name}")):
                parts.append(Template(text).substitute(body="\n".join(kept)))
        return [Message(role="system", content=self.rules), Message(role="user", content="\n".join(parts))]

    def cut_counts(self, drop: int) -> dict[str, int]:
        """What the first `drop` cuts take, for an episode's counters: the prompt, and lines by section."""
        lost = Counter(section for section, _ in self.cuts[:drop])
        return {"cut/prompts": 1, **{f"cut/{section}": n for section, n in lost.items()}} if drop else {}


@dataclass(frozen=True, slots=True)
class PromptSet:
    name: str
    hash: str  # sha256 over file names and contents
    texts: Mapping[str, str] = field(repr=False)
    settings: PromptSettings = PromptSettings()

    def act_system(self) -> str | None:
        """Text put on top of the task's own system message; `compact` has none."""
        return self.texts.get("act") or None

    def memory_block(self, memory: Memory) -> str:
        """The block that hands private rehearsals to the committed run, marked as imagined."""
        return Template(self.texts["memory"]).substitute(body=escaped(memory.text))

    def rehearsal(
        self, ctx: CallContext, records: Sequence[Record], *, show_thoughts: bool = False, check: bool = False
    ) -> RehearsalPrompt:
        """Everything REHEARSE may be shown about one call, cuttable line by line."""
        settings, shown = self.settings, self._choose(records, ctx.call)
        functions = [t.get("function", t) for t in ctx.task.tools]
        own = [f["name"] == ctx.call.name for f in functions]
        schema = [f"schema: {dumps(f)}" for f, called in zip(functions, own) if called and settings.schema]
        reply = ctx.act_reply if show_thoughts else split_thinking(ctx.act_reply)[1].strip()
        lines = {
            "tools": tuple(dumps(f) for f in functions) if settings.tools else (),
            "records": tuple(f"{call_line(r.call)} -> {dumps(r.result)}" for r in shown),
            "history": self._history(ctx.history, show_thoughts),
            "reply": (dumps(reply),) if settings.reply else (),
            "call": (*schema[:1], call_line(ctx.call)),
        }
        unmatched = [i for i, r in enumerate(shown) if not matches(r, ctx.call)]
        cuts = {
            "history": range(len(lines["history"])),
            "records": sorted(unmatched, key=lambda i: nearness(shown[i], ctx.call)),  # farthest first
            "tools": [i for i in reversed(range(len(lines["tools"]))) if not own[i]],
        }
        rules = self.texts["rehearse_rules"] + ("\n" + self.texts["rehearse_check"] if check else "")
        order = tuple((section, i) for section in CUT_ORDER for i in cuts[section])
        return RehearsalPrompt(rules, lines, order, self.texts)

    def _choose(self, records: Sequence[Record], call: ToolCall) -> list[Record]:
        """All records in their own order, or the nearest ones, nearest first; a match alone says enough."""
        limit = self.settings.max_records
        if not limit:
            return list(records)
        near = [r for r in reversed(records) if nearness(r, call) > 0]  # of equals, the latest first
        near.sort(key=lambda r: -nearness(r, call))
        return near[:1] if near and matches(near[0], call) else near[:limit]

    def _history(self, history: Sequence[Message], thoughts: bool) -> tuple[str, ...]:
        """One line a message or call, or one a call that was answered, `name {arguments} -> response`; the
        task's system message is not REHEARSE's business."""
        kind, keep = self.settings.history, self.settings.max_history
        chat, calls, waiting = list[str](), list[str](), list[ToolCall]()
        for m in history:
            if m.role == "tool":
                response = " ".join(escaped(m.content).split("\n"))
                chat.append(f"response: {response}")
                if waiting:
                    calls.append(f"{call_line(waiting.pop(0))} -> {response}")
                continue
            waiting = list(m.calls)
            if m.role != "system":
                chat += [f"{m.role} thinks: {dumps(m.thinking)}"] if thoughts and m.thinking else []
                chat += [f"{m.role}: {dumps(m.content)}"] if m.content else []
                chat += [f"call: {call_line(call)}" for call in m.calls]
        lines = {"full": chat, "calls": calls, "none": []}[kind]
        return tuple(lines[-keep:] if keep else lines)


@lru_cache(maxsize=16)
def load_prompt_set(name: str) -> PromptSet:
    """A set by its name under envace/prompts, or by the path of a folder. Raises DataError."""
    folder, where = ROOT / name if (ROOT / name).is_dir() else Path(name), f"prompt set {name!r}:"
    texts, digest = {}, hashlib.sha256()
    for path in sorted(folder.glob("*.txt")):
        try:
            texts[path.stem] = path.read_text(encoding="utf-8").strip("\n")
        except (OSError, UnicodeDecodeError) as e:
            raise DataError(f"{where} {path.name} cannot be read as UTF-8 text: {e}") from None
        digest.update(f"{path.name}\0{texts[path.stem]}\0".encode())
    for needed in NEEDED:
        if needed not in texts:
            raise DataError(f"{where} {folder / needed}.txt is missing")
    for stem, text in texts.items():
        section = stem.removeprefix("section_")
        if stem.startswith("section_") and section not in SECTIONS:
            raise DataError(f"{where} {stem}.txt is no section; there are {', '.join(SECTIONS)}")
        found = [m["named"] or m["braced"] for m in Template.pattern.finditer(text) if m["escaped"] is None]
        if (stem == "memory" or section != stem) and found != ["body"]:
            raise DataError(f"{where} {stem}.txt must hold $body once and no other $ (write $$ for one)")
    try:
        values, known = read_yaml(texts["settings"]) or {}, {f.name for f in fields(PromptSettings)}
        if not isinstance(values, dict) or not set(values) <= known:
            raise DataError(f"{where} settings.txt may hold only {', '.join(sorted(known))}")
        settings = PromptSettings(**values)
    except yaml.YAMLError as e:
        raise DataError(f"{where} settings.txt is no YAML: {' '.join(str(e).split())}") from None
    except ValueError as e:
        raise DataError(f"{where} settings.txt: {e}") from None
    return PromptSet(name, digest.hexdigest(), MappingProxyType(texts), settings)


def with_head(messages: Sequence[Message], head: str) -> tuple[Message, ...]:
    """A chat as ACT sees it: extra system text, if any, goes into the first system message."""
    if not head:
        return tuple(messages)
    if messages and messages[0].role == "system":
        first = replace(messages[0], content=f"{messages[0].content}\n\n{head}")
        return (first, *messages[1:])
    return (Message(role="system", content=head), *messages)


def call_line(call: ToolCall) -> str:
    """One call as it stands in a section."""
    return f"{dumps(call.name)[1:-1]} {dumps(call.arguments)}"
