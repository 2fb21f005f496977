"""One episode step by step: as an HTML fragment and as coloured text for a terminal.

Flows in: an `Episode` and, where known, its `Task` (for the words of the checklist). Flows out: text.
Invariant: whatever a model or a tool wrote is shown as inert text. HTML is escaped by the template engine;
control characters, which could move a cursor or reverse the reading direction, never get through."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import jinja2

from envace.report.table import clean
from envace.types import (
    JSON,
    Answer,
    Episode,
    FinishReason,
    Generation,
    Observation,
    Role,
    Source,
    Task,
)

LABELS = {  # who speaks
    "system": "SYSTEM",
    "user": "USER",
    "act": "ACT",
    "rehearse": "REHEARSE",
    "tool": "TOOL",
    "recorded": "RECORD",
    "simulator": "SIMULATOR",
    "validator": "VALIDATOR",
}
SPEAKER = {  # source of an observation -> who speaks
    Source.REHEARSAL: "rehearse",
    Source.SIMULATOR: "simulator",
    Source.RECORDED: "recorded",
    Source.ENVIRONMENT: "tool",
    Source.VALIDATOR: "validator",
}
ANSI = {
    "system": "2",
    "user": "1;37",
    "act": "1;34",
    "rehearse": "1;35",
    "tool": "1;32",
    "recorded": "1;36",
    "simulator": "1;36",
    "validator": "1;33",
    "yes": "32",
    "no": "31",
    "unscored": "33",
    "dim": "2",
    "bold": "1",
}
MARK = {Answer.YES: "✓", Answer.NO: "✗", Answer.UNSCORED: "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One thing said: by the user, by ACT, or by whoever answered a call."""

    kind: str
    """A key of LABELS."""
    text: str
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments as JSON text)"""
    name: str = ""
    """The tool that answered."""
    error: bool = False
    notes: tuple[str, ...] = ()
    raw: str = ""
    """The whole output, where the parsed parts do not show what the model wrote."""

    @property
    def label(self) -> str:
        return LABELS[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A checklist item beside its verdict."""

    id: str
    question: str
    answer: Answer
    reason: str
    required: bool

    @property
    def mark(self) -> str:
        return MARK[self.answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    index: int
    blocks: tuple[Block, ...]
    checks: tuple[Check, ...]
    reward: float | None


def turns_of(episode: Episode, task: Task | None = None) -> tuple[TurnView, ...]:
    """The episode by user turn, in order."""
    blocks = _blocks(episode)
    last = max([0, *(m.turn for m in episode.messages), *(v.turn for v in episode.verdicts)])
    return tuple(
        TurnView(
            index=k,
            blocks=tuple(b for m, b in zip(episode.messages, blocks, strict=True) if m.turn == k),
            checks=_checks(episode, task, k),
            reward=episode.turn_rewards[k] if k < len(episode.turn_rewards) else None,
        )
        for k in range(last + 1)
    )


def _blocks(episode: Episode) -> list[Block]:
    """One block a message. The k-th assistant message is step k; the tool messages behind it are its
    calls."""
    written = {(g.role, g.step, g.call_index): g for g in episode.generations}
    heard = sum(m.role == "tool" for m in episode.messages)
    matched = len(episode.observations) == heard  # no guessing where they do not
    seen = iter(episode.observations if matched else [None] * heard)
    step, call, blocks = -1, 0, []
    for m in episode.messages:
        text, name = clean(m.content), clean(m.name)
        if m.role == "assistant":
            step, call = step + 1, 0
            notes, raw = _notes(written.get((Role.ACT, step, 0)))
            calls = tuple((clean(c.name), _json(c.arguments)) for c in m.calls)
            thinking = clean(m.thinking)
            blocks.append(Block(kind="act", text=text, thinking=thinking, calls=calls, notes=notes, raw=raw))
        elif m.role == "tool":
            by = next(seen)
            rehearsed = by is not None and by.source == Source.REHEARSAL
            notes, raw = _notes(written.get((Role.REHEARSE, step, call)) if rehearsed else None, by)
            kind, error = SPEAKER[by.source] if by else "tool", bool(by and by.error)
            blocks.append(
                Block(kind=kind, text=_json_text(m.content), name=name, error=error, notes=notes, raw=raw)
            )
            call += 1
        else:
            blocks.append(Block(kind="system" if m.role == "system" else "user", text=text))
    return blocks


def _notes(g: Generation | None, observation: Observation | None = None) -> tuple[tuple[str, ...], str]:
    """What to say beside an output, and the whole output where it is broken."""
    notes, raw = [], ""
    failure = observation.failure if observation else None
    if g is not None:
        notes.append(f"{len(g.output_ids)} tokens")
        notes += [f"weights {g.weight_version}"] if g.weight_version is not None else []
        failure = g.failure or failure
        if g.failure is not None or g.finish != FinishReason.STOP:
            raw = clean(g.text)
            notes += [] if g.failure else [f"finish: {g.finish}"]
    return (*notes, *([f"failure: {failure}"] if failure else [])), raw


def _checks(episode: Episode, task: Task | None, turn: int) -> tuple[Check, ...]:
    known = {}
    if task is not None and turn < len(task.checklist):
        known = {i.id: i for i in task.checklist[turn]}
    return tuple(
        Check(
            id=clean(v.item_id),
            question=clean(item.question) if (item := known.get(v.item_id)) else "",
            answer=v.answer,
            reason=clean(v.reason),
            required=bool(item and item.required_for_next_turn),
        )
        for v in episode.verdicts
        if v.turn == turn
    )


def _json(value: JSON) -> str:
    """Compact when it fits a line, indented when not."""
    line = json.dumps(value, ensure_ascii=False)
    return clean(line if len(line) <= 100 else json.dumps(value, ensure_ascii=False, indent=2))


def _json_text(text: str) -> str:
    try:
        return _json(json.loads(text))
    except ValueError:
        return clean(text)


def outcome(episode: Episode) -> str:
    """`reward 0.50 · stop: done (detail)`, or why there is no reward."""
    reward = f"unscored ({episode.unscored_reason or 'no reason given'})"
    if episode.reward is not None:
        reward = f"reward {episode.reward:.2f}"
    detail = f" ({episode.stop_detail})" if episode.stop_detail else ""
    return clean(f"{reward} · stop: {episode.stop}{detail}")


def _counters(episode: Episode) -> list[tuple[str, int]]:
    return [(clean(k), v) for k, v in episode.counters.items() if v]


@lru_cache(maxsize=1)
def templates() -> jinja2.Environment:
    """The template environment of the pages; everything is escaped unless marked safe by this package."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("envace.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["clean"] = clean
    return env


def episode_html(episode: Episode, task: Task | None = None) -> str:
    """An HTML fragment (one <section>), every word of it escaped."""
    return (
        templates()
        .get_template("episode.html.jinja")
        .render(
            episode=episode,
            turns=turns_of(episode, task),
            outcome=outcome(episode),
            counters=_counters(episode),
        )
    )


def episode_text(
    episode: Episode, task: Task | None = None, *, color: bool = True, thinking: bool = True
) -> str:
    """The episode for a terminal; `color=False` for files and pipes."""

    def paint(kind: str, text: str) -> str:
        return f"\x1b[{ANSI[kind]}m{text}\x1b[0m" if color else text

    lines = [paint("bold", clean(f"episode {episode.id} · task {episode.task_id} · seed {episode.seed}"))]
    for turn in turns_of(episode, task):
        lines += ["", paint("dim", f"── turn {turn.index} " + "─" * 60)]
        for block in turn.blocks:
            lines += _block_lines(block, paint, thinking)
        for c in turn.checks:
            tail = (" (required)" if c.required else "") + (f" – {c.reason}" if c.reason else "")
            lines.append(f"  {paint(c.answer, c.mark)} {c.id} {c.question}{paint('dim', tail)}")
        lines += [paint("dim", f"  turn reward {turn.reward:.2f}")] if turn.reward is not None else []
    lines += ["", paint("bold", outcome(episode)) + paint("dim", f" · {episode.seconds:.1f} s")]
    if episode.counters:
        lines.append(paint("dim", "  ".join(f"{k} {v}" for k, v in _counters(episode))))
    return "\n".join(lines) + "\n"


def _block_lines(block: Block, paint: Callable[[str, str], str], thinking: bool) -> list[str]:
    notes = paint("dim", "  [" + ", ".join(block.notes) + "]") if block.notes else ""
    name = (f" {block.name}" if block.name else "") + (paint("no", " refused") if block.error else "")
    head = f"{paint(block.kind, f'{block.label:<9}')}{name}{notes}"
    if block.kind == "system":
        first, _, more = block.text.partition("\n")
        cut = "…" if more or len(first) > 100 else ""
        return [head, _indent(paint("dim", first[:100] + cut))]
    parts = [paint("dim", f"(thinks) {block.thinking}")] if block.thinking and thinking else []
    parts += [block.text] if block.text else []
    parts += [f"→ {name} {arguments}" for name, arguments in block.calls]
    parts += [paint("dim", f"(wrote) {block.raw}")] if block.raw else []
    return [head, *map(_indent, parts)]


def _indent(text: str) -> str:
    return "\n".join("          " + line for line in text.split("\n"))
