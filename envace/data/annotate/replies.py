"""What the model's replies say: a filter pass's verdict, and checklists held against the dialogue they are
about. Nothing raises.

A row is accepted or rejected only by a JSON object whose `no_error` is a JSON boolean, or exactly the word
true, false, yes or no, and whose list of errors does not contradict it; anything else is undecided. A label
without faults fits the sample: every place exists, ids are unique, dependences point at items on tool.content
of their own turn without a circle, and the weights of a turn sum to 1."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from envace.chat.text import reply_json
from envace.data import jsontext
from envace.data.annotate.dialogue import RawSample
from envace.data.checklist import EVIDENCE, FOCUS, TOLERANCE, turn_faults
from envace.judge.llm_requests import WORDS
from envace.types import JSON, Answer

MENDABLE, ROUNDING = 0.02, 1e-12
"""Distances of a turn's weights from 1: up to the first they are put right, below the second left alone."""
MOST_FAULTS = 30
"""Told at once."""
LONGEST_REASON = 500
"""Characters."""
CUT = "the reply was cut off at its limit; write fewer or shorter items"
Items = list[dict[str, JSON]]


def read_verdict(text: str) -> tuple[bool | None, str]:
    """Whether a filter pass accepts the row, None where it does not say, and why not."""
    try:
        data = reply_json(text, jsontext.read)
    except ValueError:
        return None, "reply_not_json"
    free = data.get("no_error") if isinstance(data, dict) else None
    if isinstance(free, str) and (word := WORDS.get(free.strip().lower())):
        free = word is Answer.YES
    if not isinstance(free, bool):
        return None, "reply_without_verdict"
    errors = data.get("errors") or []
    if not isinstance(errors, list) or (free and errors):
        return None, "reply_contradicts_itself"
    told = []
    for error in errors:
        if isinstance(error, dict):
            what = error["what"] if isinstance(error.get("what"), str) else "unnamed"
            error = f"turn {error.get('turn')}, step {error.get('step')}: {what}"
        told.append(str(error))
    return free, "" if free else "; ".join(told)[:LONGEST_REASON] or "no reason given"


@dataclass(frozen=True, slots=True)
class Label:
    """Items by turn; no `faults` means they can be used."""

    turns: tuple[Items, ...] = ()
    faults: tuple[str, ...] = ()
    renormalised: int = 0
    """Turns whose weights were put right."""


def read_label(text: str, sample: RawSample, finish: str = "") -> Label:
    """The label of one reply. `finish` is why the model stopped, as its server says."""
    try:
        data = reply_json(text, jsontext.read)
    except ValueError as e:
        return Label(faults=(CUT if finish == "length" else f"the reply is not one JSON object: {e}",))
    turns = data.get("turns") if isinstance(data, dict) else None
    if not isinstance(turns, list):
        return Label(faults=("turns: must be a list",))
    reader = _LabelReader(sample)
    said = f"has {len(turns)} entries, the dialogue has {sample.turns} turns"
    reader.need(len(turns) == sample.turns, "turns", said)
    read = [reader.turn(turn, t) for t, turn in enumerate(turns[: sample.turns])]
    if reader.faults:
        return Label(faults=tuple(reader.faults[:MOST_FAULTS]))
    return Label(turns=tuple(read), renormalised=reader.renormalised)


def _whole(value: JSON) -> int:
    """A count, or -1 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


def _is_share(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_text(value: JSON) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: JSON) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


FIELDS: dict[str, tuple[Callable[[JSON], bool], str]] = {
    "id": (lambda v: isinstance(v, str) and bool(re.fullmatch(r"C\d{1,3}", v)), "must be C0, C1, ..."),
    "question": (_is_text, "must be text"),
    "pass_condition": (_is_text, "must be text"),
    "failure_examples": (_are_texts, "must be a list of texts"),
    "dependence": (_are_texts, "must be a list of texts"),
    "required_for_next_turn": (lambda v: isinstance(v, bool), "must be true or false"),
    "weight": (_is_share, "must be a number from 0 to 1"),
    "focus_on": (lambda v: v in FOCUS, f"must be one of {', '.join(FOCUS)}"),
}
"""What a field of an item must be by itself, in the order in which it is told."""
ORDER = ("id", "evidence", "focus_on", "question", "pass_condition", "failure_examples")
ORDER += ("required_for_next_turn", "dependence", "weight")
"""Of an item's fields in a row."""


class _LabelReader:
    """Reads the parts of a label and collects what is wrong with them."""

    def __init__(self, sample: RawSample):
        self.sample, self.faults, self.renormalised = sample, list[str](), 0

    def need(self, ok: bool, at: str, what: str) -> bool:
        """Note a fault unless `ok`; returns `ok`."""
        if not ok:
            self.faults.append(f"{at}: {what}")
        return ok

    def turn(self, turn: JSON, t: int) -> Items:
        """The items of a turn, their weights put right where they are a little off."""
        at = f"turns[{t}]"
        items = turn.get("items") if isinstance(turn, dict) else None
        some = isinstance(items, list) and bool(items)
        if not self.need(some, f"{at}.items", "must be a list with at least one item"):
            return []
        self.need(_whole(turn.get("turn")) == t, f"{at}.turn", f"must be {t}")
        before = len(self.faults)
        read = [self.item(item, f"{at}.items[{k}]", t) for k, item in enumerate(items)]
        weights = [i.get("weight") if isinstance(i, dict) else None for i in items]
        total = math.fsum(weights) if all(map(_is_share, weights)) else 1.0
        off = abs(total - 1)
        if len(self.faults) > before:  # the sum is told now, since there is one repair only
            self.need(off <= MENDABLE, f"{at}.items", f"weights sum to {total:g}, not 1")
            return []
        divisor = total if ROUNDING <= off <= MENDABLE else 1.0
        weighed = [{**i, "weight": float(i["weight"]) / divisor} for i in read]
        self.faults += [f"{fault.field}: {fault.message}" for fault in turn_faults(weighed, f"{at}.items")]
        self.renormalised += off > TOLERANCE
        return weighed

    def item(self, item: JSON, at: str, t: int) -> dict[str, JSON]:
        """One item in the row's form."""
        if not self.need(isinstance(item, dict), at, "must be an object"):
            return {}
        fine = [self.need(ok(item.get(key)), f"{at}.{key}", what) for key, (ok, what) in FIELDS.items()]
        if fine[-1]:
            focus = item["focus_on"]
            stands = any(focus in here for (turn, _), here in self.sample.places.items() if turn == t)
            self.need(stands, f"{at}.focus_on", f"turn {t} of the dialogue has no {focus}")
        read = {**item, "evidence": self.evidence(item.get("evidence"), f"{at}.evidence", t)}
        return {key: read.get(key) for key in ORDER}

    def evidence(self, given: JSON, at: str, t: int) -> Items:
        """The places an item is drawn from."""
        some = isinstance(given, list) and bool(given)
        self.need(some, at, "must be a list with at least one place")
        read = []
        for k, part in enumerate(given if some else ()):
            spot = f"{at}[{k}]"
            if not self.need(isinstance(part, dict), spot, "must be an object"):
                continue
            turn, step, kind = _whole(part.get("turn")), _whole(part.get("step")), part.get("from")
            if not self.need(kind in EVIDENCE, f"{spot}.from", f"must be one of {', '.join(EVIDENCE)}"):
                continue
            here = self.sample.places.get((turn, step), {})
            self.need(kind in here, spot, f"the dialogue has no {kind} at turn {turn}, step {step}")
            self.need(turn <= t, f"{spot}.turn", f"is later than turn {t}, which the item is about")
            self.need(_is_text(part.get("snippet")), f"{spot}.snippet", "must be text")
            read.append({"turn": turn, "step": step, "from": kind, "snippet": part.get("snippet")})
        return read
