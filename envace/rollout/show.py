"""One episode on a terminal, line by line as it happens.

Flows in: the events `run_episode` reports to its watcher. Flows out: text for people, coloured by role.
Invariant: text written by a model, a tool or a data set cannot move the cursor or change the terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TextIO

from envace.chat.contract import is_error
from envace.chat.text import dumps
from envace.types import Answer, Episode, Message, Observation, Source, Task, Verdict

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COLOURS = {
    "user": "36",
    "ACT": "34;1",
    "REHEARSE": "35;1",
    "world": "32",
    "refused": "33",
    "good": "32",
    "bad": "31",
    "dim": "2",
    "system": "2",
}
SPEAKERS = {
    Source.REHEARSAL: "REHEARSE",
    Source.SIMULATOR: "simulator",
    Source.VALIDATOR: "validator",
    Source.ENVIRONMENT: "world",
    Source.RECORDED: "record",
}
MARKS = {Answer.YES: ("yes", "good"), Answer.NO: ("no", "bad"), Answer.UNSCORED: ("unscored", "refused")}
WIDTH = 10


def printable(text: str) -> str:
    """Text without control and direction characters; newlines and tabs stay."""
    return _CONTROL.sub("\ufffd", text)


def wants_colour(stream: TextIO) -> bool:
    """Colour on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


class Printer:
    """Pass `watch` to `run_episode`; call `prefix` before and `summary` after."""

    def __init__(self, task: Task, write: Callable[[str], None], colour: bool):
        self.task, self.write, self.colour = task, write, colour

    def watch(self, event: Message | Observation | Verdict) -> None:
        """One event of the episode."""
        if isinstance(event, Message):
            self._message(event)
        elif isinstance(event, Observation):
            self._observation(event)
        else:
            self._verdict(event)

    def prefix(self) -> None:
        """The messages the task starts with."""
        for message in self.task.prefix:
            self._message(message)

    def summary(self, episode: Episode) -> None:
        """Turn rewards, stop reason and counters."""
        rewards = ", ".join(f"{r:.2f}" for r in episode.turn_rewards) or "none judged"
        if episode.reward is None:
            reward, style, detail = f"unscored ({episode.unscored_reason})", "bad", ""
        else:
            reward, style = f"reward {episode.reward:.2f}", "good" if episode.reward >= 1 - 1e-9 else "bad"
            detail = f" ({episode.stop_detail})" if episode.stop_detail else ""
        self.write("")
        self.write(
            self._paint(printable(f"{reward}   turns: {rewards}   stop: {episode.stop.value}{detail}"), style)
        )
        counts = "   ".join(f"{k.replace('_', ' ')} {v}" for k, v in episode.counters.items() if v)
        self.write(self._paint(f"{counts}   {episode.seconds:.2f} s", "dim"))

    def _message(self, message: Message) -> None:
        if message.role == "tool":
            return  # its observation says the same and who answered
        label = "ACT" if message.role == "assistant" else message.role
        if message.thinking:
            self._line(label, f"(thinks) {message.thinking}", "dim")
        if message.content or not message.calls:
            self._line(label, message.content or "(nothing)", label)
        for call in message.calls:
            self._line(label, f"calls {call.name} {dumps(call.arguments)}", label)

    def _observation(self, seen: Observation) -> None:
        label = SPEAKERS[seen.source]
        style = "REHEARSE" if label == "REHEARSE" else "world"
        if seen.error or is_error(seen.content):
            style = "refused"
        why = f"   [{seen.failure.value}]" if seen.failure else ""
        self._line(label, dumps(seen.content) + why, style)

    def _verdict(self, verdict: Verdict) -> None:
        item = next((i for i in self.task.checklist[verdict.turn] if i.id == verdict.item_id), None)
        mark, style = MARKS[verdict.answer]
        asked = f"{item.question} ({item.weight:g})" if item else ""
        reason = f"   [{verdict.reason}]" if verdict.reason and verdict.answer is not Answer.YES else ""
        self._line("judge", f"{verdict.item_id} {mark:4}{asked}{reason}", style)

    def _line(self, label: str, text: str, style: str) -> None:
        first, *rest = printable(text).split("\n")
        self.write(
            f"{self._paint(label.ljust(WIDTH), style)} {self._paint(first, 'dim' if style == 'dim' else '')}"
        )
        for line in rest:
            self.write(f"{' ' * WIDTH} {line}")

    def _paint(self, text: str, style: str) -> str:
        code = COLOURS.get(style)
        return f"\033[{code}m{text}\033[0m" if code and self.colour else text
