"""What the model's replies say: a filter pass's verdict, and checklists held against the dialogue they are
about.

A row is accepted or rejected only by a JSON object whose `no_error` is a JSON boolean, or exactly the word
true, false, yes or no, and whose list of errors does not contradict it; anything else is undecided. A label
without faults fits the sample: every place exists, ids are unique, dependences point at items on tool.content
of their own turn without a circle, and the weights of a turn sum to 1 (sums off by at most 2 % are put right
and counted). Nothing raises."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from envace.data import jsontext
from envace.data.annotate.dialogue import RawSample
from envace.data.checklist import EVIDENCE, FOCUS, TOLERANCE, turn_faults
from envace.judge.llm_answers import WORDS
from envace.types import JSON, Answer

MENDABLE, ROUNDING = 0.02, 1e-12
"""Distances of a turn's weights from 1."""
MOST_FAULTS = 30
"""Told at once."""
LONGEST_REASON = 500
"""Characters."""
ID = re.compile(r"C\d{1,3}")
CUT = "the reply was cut off at its limit; write fewer or shorter items"
Items = list[dict[str, JSON]]


class State(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class FilterVerdict:
    """`FilterVerdict(State.REJECTED, "turn 0, step 1: the city was never named")`"""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """Items by turn; no `faults` means they can be used."""

    turns: tuple[Items, ...] = ()
    faults: tuple[str, ...] = ()
    renormalised: int = 0
    """Turns whose weights were put right."""


def strict_json(text: str) -> JSON:
    """The JSON of a model's reply, its thinking and one code fence taken off. Raises ValueError."""
    text = text.rpartition("</think>")[2].strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2].removesuffix("```")
    return jsontext.read(text)


def read_verdict(text: str) -> FilterVerdict:
    """The verdict of one filter pass."""
    try:
        data = strict_json(text)
    except ValueError:
        return FilterVerdict(State.UNDECIDED, "reply_not_json")
    free = data.get("no_error") if isinstance(data, dict) else None
    if isinstance(free, str) and (word := WORDS.get(free.strip().lower())):
        free = word is Answer.YES
    if not isinstance(free, bool):
        return FilterVerdict(State.UNDECIDED, "reply_without_verdict")
    errors = data.get("errors") or []
    if not isinstance(errors, list) or (free and errors):
        return FilterVerdict(State.UNDECIDED, "reply_contradicts_itself")
    if free:
        return FilterVerdict(State.ACCEPTED)
    told = []
    for error in errors:
        if isinstance(error, dict):
            what = error["what"] if isinstance(error.get("what"), str) else "unnamed"
            error = f"turn {error.get('turn')}, step {error.get('step')}: {what}"
        told.append(str(error))
    return FilterVerdict(State.REJECTED, "; ".join(told)[:LONGEST_REASON] or "no reason given")


def read_label(text: str, sample: RawSample, finish: str = "") -> Label:
    """The label of one reply. `finish` is why the model stopped, as its server says."""
    try:
        data = strict_json(text)
    except ValueError as e:
        return Label(faults=(CUT if finish == "length" else f"the reply is not one JSON object: {e}",))
    reader, turns = _Reader(sample), data.get("turns") if isinstance(data, dict) else None
    if not reader.need(isinstance(turns, list), "turns", "must be a list"):
        return Label(faults=tuple(reader.faults))
    said = f"has {len(turns)} entries, the dialogue has {sample.turns} turns"
    reader.need(len(turns) == sample.turns, "turns", said)
    read = [reader.turn(turn, t) for t, turn in enumerate(turns[: sample.turns])]
    if reader.faults:
        return Label(faults=tuple(reader.faults[:MOST_FAULTS]))
    return Label(turns=tuple(items for items, _ in read), renormalised=sum(mended for _, mended in read))


class _Reader:
    """Reads the parts of a label and collects what is wrong with them."""

    def __init__(self, sample: RawSample):
        self.sample, self.faults = sample, list[str]()

    def need(self, ok: bool, at: str, what: str) -> bool:
        """Note a fault unless `ok`; returns `ok`."""
        if not ok:
            self.faults.append(f"{at}: {what}")
        return ok

    def turn(self, turn: JSON, t: int) -> tuple[Items, bool]:
        """The items of a turn, and whether their weights were put right."""
        at = f"turns[{t}]"
        items = turn.get("items") if isinstance(turn, dict) else None
        some = isinstance(items, list) and bool(items)
        if not self.need(some, f"{at}.items", "must be a list with at least one item"):
            return [], False
        self.need(_whole(turn.get("turn")) == t, f"{at}.turn", f"must be {t}")
        before = len(self.faults)
        read = [self.item(item, f"{at}.items[{k}]", t) for k, item in enumerate(items)]
        weights = [i.get("weight") if isinstance(i, dict) else None for i in items]
        total = math.fsum(weights) if all(map(_share, weights)) else 1.0
        off = abs(total - 1)
        if len(self.faults) > before:  # the sum is told now, since there is one repair only
            self.need(off <= MENDABLE, f"{at}.items", f"weights sum to {total:g}, not 1")
            return [], False
        divisor = total if ROUNDING <= off <= MENDABLE else 1.0
        weighed = [{**i, "weight": float(i["weight"]) / divisor} for i in read]
        self.faults += [f"{fault.field}: {fault.message}" for fault in turn_faults(weighed, f"{at}.items")]
        return weighed, off > TOLERANCE

    def item(self, item: JSON, at: str, t: int) -> dict[str, JSON]:
        """One item in the row's form."""
        if not self.need(isinstance(item, dict), at, "must be an object"):
            return {}
        get, focus, number = item.get, item.get("focus_on"), item.get("id")
        self.need(isinstance(number, str) and bool(ID.fullmatch(number)), f"{at}.id", "must be C0, C1, ...")
        for key in ("question", "pass_condition"):
            self.need(_text(get(key)), f"{at}.{key}", "must be text")
        for key in ("failure_examples", "dependence"):
            fine = isinstance(get(key), list) and all(map(_text, get(key)))
            self.need(fine, f"{at}.{key}", "must be a list of texts")
        required = "required_for_next_turn"
        self.need(isinstance(get(required), bool), f"{at}.{required}", "must be true or false")
        self.need(_share(get("weight")), f"{at}.weight", "must be a number from 0 to 1")
        if self.need(focus in FOCUS, f"{at}.focus_on", f"must be one of {', '.join(FOCUS)}"):
            stands = any(focus in here for (turn, _), here in self.sample.places.items() if turn == t)
            self.need(stands, f"{at}.focus_on", f"turn {t} of the dialogue has no {focus}")
        evidence = self.evidence(get("evidence"), f"{at}.evidence", t)
        kept = ("question", "pass_condition", "failure_examples", required, "dependence", "weight")
        return {"id": number, "evidence": evidence, "focus_on": focus, **{key: get(key) for key in kept}}

    def evidence(self, given: JSON, at: str, t: int) -> Items:
        """The places an item is drawn from."""
        if not self.need(
            isinstance(given, list) and bool(given), at, "must be a list with at least one place"
        ):
            return []
        read = []
        for k, part in enumerate(given):
            spot = f"{at}[{k}]"
            if not self.need(isinstance(part, dict), spot, "must be an object"):
                continue
            turn, step, kind = _whole(part.get("turn")), _whole(part.get("step")), part.get("from")
            if not self.need(kind in EVIDENCE, f"{spot}.from", f"must be one of {', '.join(EVIDENCE)}"):
                continue
            here = self.sample.places.get((turn, step), {})
            self.need(kind in here, spot, f"the dialogue has no {kind} at turn {turn}, step {step}")
            self.need(turn <= t, f"{spot}.turn", f"is later than turn {t}, which the item is about")
            self.need(_text(part.get("snippet")), f"{spot}.snippet", "must be text")
            read.append({"turn": turn, "step": step, "from": kind, "snippet": part.get("snippet")})
        return read


def _whole(value: JSON) -> int:
    """A count, or -1 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


def _share(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _text(value: JSON) -> bool:
    return isinstance(value, str) and bool(value.strip())
