"""What a filter pass said.

Flows in: the text of a reply. Flows out: a `Verdict`: accepted, rejected with a reason, or undecided.
Invariant: a row is accepted or rejected only by a JSON object whose `no_error` is a JSON boolean, or exactly the
word true, false, yes or no, and whose list of errors does not contradict it. Anything else is undecided.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from envace.data.annotate.wire import strict_json
from envace.judge.llm_answers import WORDS
from envace.types import JSON, Answer

LONGEST_REASON = 500  # characters


class State(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`Verdict(State.REJECTED, "turn 0, step 1: the city was never named")`"""

    state: State
    reason: str = ""


def read_verdict(text: str) -> Verdict:
    """The verdict of one reply. Never raises."""
    try:
        data = strict_json(text)
    except ValueError:
        return Verdict(State.UNDECIDED, "reply_not_json")
    answer = _answer(data.get("no_error")) if isinstance(data, dict) else None
    if answer is None:
        return Verdict(State.UNDECIDED, "reply_without_verdict")
    errors = data.get("errors") or []
    if not isinstance(errors, list) or (answer and errors):
        return Verdict(State.UNDECIDED, "reply_contradicts_itself")
    if answer:
        return Verdict(State.ACCEPTED)
    return Verdict(State.REJECTED, "; ".join(map(_error, errors))[:LONGEST_REASON] or "no reason given")


def _answer(value: JSON) -> bool | None:
    if isinstance(value, bool):
        return value
    word = WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    return None if word is None else word is Answer.YES


def _error(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    what = error.get("what")
    return (
        f"turn {error.get('turn')}, step {error.get('step')}: {what if isinstance(what, str) else 'unnamed'}"
    )
