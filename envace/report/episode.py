"""One episode step by step: as an HTML fragment and as coloured text for a terminal.

Flows in: an `Episode` and, where known, its `Task` (for the words of the checklist). Flows out: text.
Invariant: whatever a model or a tool wrote is shown as inert text. HTML is escaped by the template engine;
control characters, which could move a terminal's cursor or reverse the reading direction, never get through.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envace.types import (
    Answer,
    Episode,
    FinishReason,
    Generation,
    Item,
    Message,
    Observation,
    Role,
    Source,
    Task,
)

# C0 without tab and newline, C1, direction overrides, lone surrogates
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

KINDS = {  # who speaks -> label
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

    kind: str  # a key of KINDS
    text: str
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # (name, arguments as JSON text)
    name: str = ""  # the tool that answered
    error: bool = False
    notes: tuple[str, ...] = ()
    raw: str = ""  # the whole output, where the parsed parts do not show what the model wrote

    @property
    def label(self) -> str:
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A checklist item beside its verdict."""

    id: str
    question: str
    answer: Answer
    reason: str
    required: bool
    weight: float | None

    @property
    def mark(self) -> str:
        return MARK[self.answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    index: int
    blocks: tuple[Block, ...]
    checks: tuple[Check, ...]
    reward: float | None


def clean(text: Any) -> str:
    """Text without characters that act on a terminal or a reader instead of being read."""
    return UNSAFE.sub("\ufffd", str(text).replace("\r\n", "\n"))


def turns_of(episode: Episode, task: Task | None = None) -> tuple[TurnView, ...]:
    """The episode by user turn, in order."""
    blocks = _blocks(episode)
    last = max([0, *(m.turn for m in episode.messages), *(v.turn for v in episode.verdicts)])
    return tuple(
        TurnView(
            index=k,
            blocks=tuple(b for m, b in zip(episode.messages, blocks) if m.turn == k),
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
    seen = iter(episode.observations if len(episode.observations) == heard else [None] * heard)  # no guessing
    step, call, blocks = -1, 0, []
    for message in episode.messages:
        if message.role == "assistant":
            step, call = step + 1, 0
            blocks.append(_act_block(message, written.get((Role.ACT, step, 0))))
        elif message.role == "tool":
            observation = next(seen)
            own = (
                written.get((Role.REHEARSE, step, call))
                if observation and observation.source == Source.REHEARSAL
                else None
            )
            blocks.append(_tool_block(message, observation, own))
            call += 1
        else:
            blocks.append(
                Block(kind="system" if message.role == "system" else "user", text=clean(message.content))
            )
    return blocks


def _act_block(message: Message, generation: Generation | None) -> Block:
    notes, raw = _generation_notes(generation)
    return Block(
        kind="act",
        text=clean(message.content),
        thinking=clean(message.thinking),
        notes=notes,
        raw=raw,
        calls=tuple((clean(c.name), _json(c.arguments)) for c in message.calls),
    )


def _tool_block(message: Message, observation: Observation | None, generation: Generation | None) -> Block:
    notes, raw = _generation_notes(generation)
    if observation is not None and observation.failure and not any("failure" in n for n in notes):
        notes = (*notes, f"failure: {observation.failure}")
    return Block(
        kind=SPEAKER[observation.source] if observation else "tool",
        text=_json_text(message.content),
        name=clean(message.name),
        error=bool(observation and observation.error),
        notes=notes,
        raw=raw,
    )


def _generation_notes(generation: Generation | None) -> tuple[tuple[str, ...], str]:
    if generation is None:
        return (), ""
    notes = [f"{len(generation.output_ids)} tokens"]
    if generation.weight_version is not None:
        notes.append(f"weights {generation.weight_version}")
    broken = generation.failure is not None or generation.finish != FinishReason.STOP
    if generation.failure is not None:
        notes.append(f"failure: {generation.failure}")
    elif broken:
        notes.append(f"finish: {generation.finish}")
    return tuple(notes), clean(generation.text) if broken else ""


def _checks(episode: Episode, task: Task | None, turn: int) -> tuple[Check, ...]:
    items: dict[str, Item] = {}
    if task is not None and turn < len(task.checklist):
        items = {i.id: i for i in task.checklist[turn]}
    checks = []
    for v in (v for v in episode.verdicts if v.turn == turn):
        item = items.get(v.item_id)
        checks.append(
            Check(
                id=clean(v.item_id),
                question=clean(item.question) if item else "",
                answer=v.answer,
                reason=clean(v.reason),
                required=bool(item and item.required_for_next_turn),
                weight=item.weight if item else None,
            )
        )
    return tuple(checks)


def _json(value: Any) -> str:
    """Compact when it fits a line, indented when not."""
    line = json.dumps(value, ensure_ascii=False)
    return clean(line if len(line) <= 100 else json.dumps(value, ensure_ascii=False, indent=2))


def _json_text(text: str) -> str:
    try:
        return _json(json.loads(text))
    except ValueError:
        return clean(text)


def outcome(episode: Episode) -> str:
    """`reward 0.50, stop done (detail)`, or why there is no reward."""
    reward = (
        f"reward {episode.reward:.2f}"
        if episode.reward is not None
        else f"unscored ({episode.unscored_reason or 'no reason given'})"
    )
    return clean(
        f"{reward} · stop: {episode.stop}" + (f" ({episode.stop_detail})" if episode.stop_detail else "")
    )


# --- HTML ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def templates() -> Any:
    """The template environment of the pages; everything is escaped unless marked safe by this package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("envace.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["clean"] = clean
    return env


def episode_html(episode: Episode, task: Task | None = None) -> str:
    """An HTML fragment (one <section>), every word of it escaped; `style()` makes it readable."""
    return (
        templates()
        .get_template("episode.html.jinja")
        .render(
            episode=episode,
            task=task,
            turns=turns_of(episode, task),
            outcome=outcome(episode),
            counters=_counters(episode),
        )
    )


def style() -> str:
    """The CSS of fragments and pages."""
    return templates().get_template("style.css.jinja").render()


def _counters(episode: Episode) -> list[tuple[str, int]]:
    return [(clean(k), v) for k, v in episode.counters.items() if v]


# --- terminal -----------------------------------------------------------------------------------------------


def episode_text(
    episode: Episode, task: Task | None = None, *, color: bool = True, thinking: bool = True
) -> str:
    """The episode for a terminal; `color=False` for files and pipes."""
    paint = _paint if color else (lambda _, text: text)
    lines = [paint("bold", clean(f"episode {episode.id} · task {episode.task_id} · seed {episode.seed}"))]
    for turn in turns_of(episode, task):
        lines += ["", paint("dim", f"── turn {turn.index} " + "─" * 60)]
        for block in turn.blocks:
            lines += _block_lines(block, paint, thinking)
        lines += _check_lines(turn, paint)
    lines += ["", paint("bold", outcome(episode)) + paint("dim", f" · {episode.seconds:.1f} s")]
    if episode.counters:
        lines.append(paint("dim", "  ".join(f"{k} {v}" for k, v in _counters(episode))))
    return "\n".join(lines) + "\n"


def _paint(kind: str, text: str) -> str:
    return f"\x1b[{ANSI[kind]}m{text}\x1b[0m"


def _block_lines(block: Block, paint: Any, thinking: bool) -> list[str]:
    head = paint(block.kind, f"{block.label:<9}")
    notes = paint("dim", "  [" + ", ".join(block.notes) + "]") if block.notes else ""
    name = f" {block.name}" if block.name else ""
    lines = [f"{head}{name}{paint('no', ' refused') if block.error else ''}{notes}"]
    if block.kind == "system":
        first = block.text.split("\n", 1)[0]
        return [
            lines[0],
            _indent(paint("dim", first[:100] + ("…" if len(block.text) > len(first[:100]) else ""))),
        ]
    if block.thinking and thinking:
        lines.append(_indent(paint("dim", f"(thinks) {block.thinking}")))
    if block.text:
        lines.append(_indent(block.text))
    lines += [_indent(f"→ {name} {arguments}") for name, arguments in block.calls]
    if block.raw:
        lines.append(_indent(paint("dim", f"(wrote) {block.raw}")))
    return lines


def _check_lines(turn: TurnView, paint: Any) -> list[str]:
    lines = []
    for c in turn.checks:
        tail = (" (required)" if c.required else "") + (f" – {c.reason}" if c.reason else "")
        lines.append(f"  {paint(c.answer, c.mark)} {c.id} {c.question}{paint('dim', tail)}")
    if turn.reward is not None:
        lines.append(paint("dim", f"  turn reward {turn.reward:.2f}"))
    return lines


def _indent(text: str) -> str:
    return "\n".join("          " + line for line in text.split("\n"))
