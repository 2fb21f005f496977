"""What a judge's model says -> yes, no or unscored with a reason.

Flows in: the text of a reply, or the fault that stands for one. Flows out: an `Answer` an item, or a reason.
Invariant: yes and no come only from a JSON boolean, or from exactly the word true, false, yes or no, in the
item's own place. Nothing is searched for in prose and nothing is guessed.

Reasons of unscored verdicts, each with a detail after ": ":
  judge_timeout      no complete reply within the deadline of one request
  judge_unreachable  no connection, or a server error (5xx, 408, 409, 425, 429)
  judge_malformed    a reply without a usable answer for the item
  judge_refused      the server or the model declined (other statuses, refusal, content filter); not retried
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from envace.io.chat_reply import RETRIED_STATUS, ChatFault
from envace.types import JSON, Answer, Item

WORDS = {"true": Answer.YES, "yes": Answer.YES, "false": Answer.NO, "no": Answer.NO}
ITEM_OPEN = "item_open"
"""The reason of a fault: a reply that answers some of its items, or none."""
REASONS = {
    "timeout": "judge_timeout",
    "unreachable": "judge_unreachable",
    "malformed": "judge_malformed",
    "too_large": "judge_malformed",
    ITEM_OPEN: "judge_malformed",
    "refused_by_model": "judge_refused",
}


def judge_reason(reason: str) -> str:
    """The judge's name for the reason of a client's fault."""
    if reason in REASONS:
        return REASONS[reason]
    status = int(reason.removeprefix("http_"))
    return "judge_unreachable" if status in RETRIED_STATUS or status >= 500 else "judge_refused"


def read_turn(text: str, items: Sequence[Item]) -> dict[str, Answer]:
    """The answers in a reply to several items. Raises ChatFault unless it is one JSON object."""
    data = _object(text)
    return {item.id: answer for item in items if (answer := _answer(data.get(item.id))) is not None}


def read_step(text: str, items: Sequence[Item]) -> dict[str, Answer]:
    """The answer in a reply to the only item. Raises ChatFault unless it is one JSON object."""
    answer = _answer(_object(text))
    return {} if answer is None else {items[0].id: answer}


def _answer(value: JSON) -> Answer | None:
    if isinstance(value, dict):
        value = value.get("answer")
    if isinstance(value, bool):
        return Answer.YES if value else Answer.NO
    return WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def _object(text: str) -> dict[str, JSON]:
    """The JSON of a reply, its thinking and one code fence around all of it taken off."""
    text = text.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2].removesuffix("```")
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise ChatFault("malformed", "not JSON") from None
    if not isinstance(data, dict):
        raise ChatFault("malformed", "not a JSON object")
    return data


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    """A key given twice contradicts itself."""
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key occurs twice")
    return data
