"""One episode on a terminal, line by line as it happens.

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

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
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


def wants_colour(stream: TextIO) -> bool:
    """Colour on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


class Printer:
    """Pass `watch` to `run_episode`; call `prefix` before and `summary` after."""

    def __init__(self, task: Task, write: Callable[[str], None], colour: bool):
        self.task, self.write, self.colour = task, write, colour

    def prefix(self) -> None:
        """The messages the task starts with."""
        for message in self.task.prefix:
            self.watch(message)

    def watch(self, event: Message | Observation | Verdict) -> None:
        """One event of the episode."""
        if isinstance(event, Message):
            self._message(event)
        elif isinstance(event, Observation):
            label = SPEAKERS[event.source]
            style = "REHEARSE" if label == "REHEARSE" else "world"
            refused = event.error or is_error(event.content)
            why = f"   [{event.failure.value}]" if event.failure else ""
            self._line(label, dumps(event.content) + why, "refused" if refused else style)
        else:
            item = next((i for i in self.task.checklist[event.turn] if i.id == event.item_id), None)
            mark, style = MARKS[event.answer]
            asked = f"{item.question} ({item.weight:g})" if item else ""
            reason = f"   [{event.reason}]" if event.reason and event.answer is not Answer.YES else ""
            self._line("judge", f"{event.item_id} {mark:4}{asked}{reason}", style)

    def summary(self, episode: Episode) -> None:
        """Turn rewards, stop reason and counters."""
        rewards = ", ".join(f"{r:.2f}" for r in episode.turn_rewards) or "none judged"
        if episode.reward is None:
            reward, style, detail = f"unscored ({episode.unscored_reason})", "bad", ""
        else:
            reward, style = f"reward {episode.reward:.2f}", "good" if episode.reward >= 1 - 1e-9 else "bad"
            detail = f" ({episode.stop_detail})" if episode.stop_detail else ""
        counts = "   ".join(f"{k.replace('_', ' ')} {v}" for k, v in episode.counters.items() if v)
        self.write("")
        self.write(self._paint(f"{reward}   turns: {rewards}   stop: {episode.stop.value}{detail}", style))
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

    def _line(self, label: str, text: str, style: str) -> None:
        first, *rest = text.split("\n")
        said = self._paint(first, "dim" if style == "dim" else "")
        self.write(f"{self._paint(label.ljust(WIDTH), style)} {said}")
        for line in rest:
            self.write(f"{' ' * WIDTH} {self._paint(line, '')}")

    def _paint(self, text: str, style: str) -> str:
        """Without control and direction characters; newlines and tabs stay."""
        text, code = CONTROL.sub("\ufffd", text), COLOURS.get(style)
        return f"\033[{code}m{text}\033[0m" if code and self.colour else text
