"""What a judge's server says -> yes, no or unscored.

Flows in: the bytes of a chat completion, or the text in it. Flows out: a `Finding` an item: an answer with, when
it is unscored, the reason.
Invariant: yes and no come only from a JSON boolean, or from exactly the word true, false, yes or no, in the
item's own place. Nothing is searched for in prose and nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from envace.judge.bill import Bill
from envace.types import JSON, Answer, Item

WORDS = {"true": Answer.YES, "yes": Answer.YES, "false": Answer.NO, "no": Answer.NO}
Finding = tuple[Answer, str]


class JudgeFault(Exception):
    """One request that gave no usable answer. Never leaves the judge.

    `reason`: its name. `again`: asking again may help. `blamed`: the endpoint is at fault, not the request or the
    model's words. `wait_s`: how long the server asked to be left alone.
    """

    def __init__(
        self, reason: str, detail: str = "", *, again: bool = True, blamed: bool = False, wait_s: float = 0.0
    ):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.again, self.blamed, self.wait_s = again, blamed, wait_s


def reply_text(content: bytes, bill: Bill) -> str:
    """The assistant's text of a chat completion, its tokens put on the bill. Raises JudgeFault."""
    try:
        data = json.loads(content)
        choice = data["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text, refusal = message.get("content"), message.get("refusal")
    except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError):
        raise JudgeFault("judge_malformed", "not a chat completion", blamed=True) from None
    bill.note(data.get("usage"))
    if refusal or finish == "content_filter":
        raise JudgeFault("judge_refused", "by the model", again=False)
    if not isinstance(text, str) or not text.strip():
        raise JudgeFault("judge_malformed", "empty reply")
    return text


def read_reply(text: str, items: Sequence[Item]) -> list[Finding]:
    """Answer and reason of each item of a reply to all of them. Raises JudgeFault unless it is one JSON object."""
    data = _object(text)
    return [_finding(data.get(item.id), item.id) for item in items]


def read_single(text: str, item: Item) -> Finding:
    """Answer and reason of a reply to one item. Raises JudgeFault unless it is one JSON object."""
    return _finding(_object(text), item.id)


def _finding(value: JSON, item_id: str) -> Finding:
    if isinstance(value, dict):
        value = value.get("answer")
    if isinstance(value, bool):
        return (Answer.YES if value else Answer.NO), ""
    if isinstance(value, str) and value.strip().lower() in WORDS:
        return WORDS[value.strip().lower()], ""
    return Answer.UNSCORED, f"judge_malformed: no true or false for {item_id}"


def _object(text: str) -> dict[str, JSON]:
    """Strict JSON: a key given twice contradicts itself. Raises JudgeFault."""
    try:
        data = json.loads(_bare(text), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise JudgeFault("judge_malformed", "not JSON") from None
    if not isinstance(data, dict):
        raise JudgeFault("judge_malformed", "not a JSON object")
    return data


def _bare(text: str) -> str:
    """The reply without its thinking and without one code fence around all of it."""
    text = text.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2].removesuffix("```")
    return text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key occurs twice")
    return data
