"""The checklists of a reply, checked against the dialogue they are about.

Flows in: the text of a reply and the sample. Flows out: a `Label`: turns of items in the row's form, or faults.
Invariant: a label without faults fits the sample: every place exists, ids are unique, dependences point at items
on tool.content of their own turn without a circle, and the weights of a turn sum to 1. Sums off by more than 1e-6
and up to 2 % are put right and counted. Nothing raises.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from envace.data.annotate.dialogue import Sample
from envace.data.annotate.wire import strict_json
from envace.data.checklist import EVIDENCE, FOCUS, TOLERANCE, turn_faults
from envace.types import JSON

MENDABLE, ROUNDING = 0.02, 1e-12  # distances of a turn's weights from 1
MOST_FAULTS = 30  # told at once
ID = re.compile(r"C\d{1,3}")
Items = list[dict[str, JSON]]


@dataclass(frozen=True, slots=True)
class Label:
    """Items a turn; `faults` empty means they can be used."""

    turns: tuple[Items, ...] = ()
    faults: tuple[str, ...] = ()
    renormalised: int = 0  # turns whose weights were put right


class _Faults(list[str]):
    def need(self, ok: bool, at: str, what: str) -> bool:
        """Note a fault unless `ok`; returns `ok`."""
        if not ok:
            self.append(f"{at}: {what}")
        return ok


def read_label(text: str, sample: Sample, finish: str = "") -> Label:
    """The label of one reply. `finish` is why the model stopped, as its server says."""
    try:
        data = strict_json(text)
    except ValueError as e:
        cut = "the reply was cut off at its limit; write fewer or shorter items"
        return Label(faults=(cut if finish == "length" else f"the reply is not one JSON object: {e}",))
    faults = _Faults()
    turns = data.get("turns") if isinstance(data, dict) else None
    if not faults.need(isinstance(turns, list), "turns", "must be a list"):
        return Label(faults=tuple(faults))
    faults.need(
        len(turns) == sample.turns,
        "turns",
        f"has {len(turns)} entries, the dialogue has {sample.turns} turns",
    )
    read = [_turn(turn, t, sample, faults) for t, turn in enumerate(turns[: sample.turns])]
    if faults:
        return Label(faults=tuple(faults[:MOST_FAULTS]))
    return Label(turns=tuple(items for items, _ in read), renormalised=sum(mended for _, mended in read))


def _turn(turn: Any, t: int, sample: Sample, faults: _Faults) -> tuple[Items, bool]:
    at = f"turns[{t}]"
    items = turn.get("items") if isinstance(turn, dict) else None
    if not faults.need(
        isinstance(items, list) and bool(items), f"{at}.items", "must be a list with at least one item"
    ):
        return [], False
    faults.need(_whole(turn.get("turn")) == t, f"{at}.turn", f"must be {t}")
    before = len(faults)
    read = [_item(item, f"{at}.items[{k}]", t, sample, faults) for k, item in enumerate(items)]
    if len(faults) > before:
        _sum(items, at, faults)  # told now, since there is one repair only
        return [], False
    weighed, mended = _weighed(read)
    _relations(weighed, at, faults)
    return weighed, mended


def _item(item: Any, at: str, t: int, sample: Sample, faults: _Faults) -> dict[str, JSON]:
    if not faults.need(isinstance(item, dict), at, "must be an object"):
        return {}
    get = item.get
    focus, weight, number = get("focus_on"), get("weight"), get("id")
    faults.need(isinstance(number, str) and bool(ID.fullmatch(number)), f"{at}.id", "must be C0, C1, ...")
    for key in ("question", "pass_condition"):
        faults.need(_text(get(key)), f"{at}.{key}", "must be text")
    for key in ("failure_examples", "dependence"):
        fine = isinstance(get(key), list) and all(map(_text, get(key)))
        faults.need(fine, f"{at}.{key}", "must be a list of texts")
    faults.need(
        isinstance(get("required_for_next_turn"), bool),
        f"{at}.required_for_next_turn",
        "must be true or false",
    )
    faults.need(_share(weight), f"{at}.weight", "must be a number from 0 to 1")
    if faults.need(focus in FOCUS, f"{at}.focus_on", f"must be one of {', '.join(FOCUS)}"):
        stands = any(focus in here for (turn, _), here in sample.places.items() if turn == t)
        faults.need(stands, f"{at}.focus_on", f"turn {t} of the dialogue has no {focus}")
    return {
        "id": number, "evidence": _evidence(get("evidence"), f"{at}.evidence", t, sample, faults), "focus_on": focus,
        "question": get("question"), "pass_condition": get("pass_condition"), "failure_examples": get("failure_examples"),
        "required_for_next_turn": get("required_for_next_turn"), "dependence": get("dependence"), "weight": weight,
    }  # fmt: skip


def _evidence(given: Any, at: str, t: int, sample: Sample, faults: _Faults) -> list[JSON]:
    if not faults.need(isinstance(given, list) and bool(given), at, "must be a list with at least one place"):
        return []
    read = []
    for k, part in enumerate(given):
        spot = f"{at}[{k}]"
        if not faults.need(isinstance(part, dict), spot, "must be an object"):
            continue
        turn, step, kind = _whole(part.get("turn")), _whole(part.get("step")), part.get("from")
        if not faults.need(kind in EVIDENCE, f"{spot}.from", f"must be one of {', '.join(EVIDENCE)}"):
            continue
        here = sample.places.get((turn, step), {})
        faults.need(kind in here, spot, f"the dialogue has no {kind} at turn {turn}, step {step}")
        faults.need(turn <= t, f"{spot}.turn", f"is later than turn {t}, which the item is about")
        faults.need(_text(part.get("snippet")), f"{spot}.snippet", "must be text")
        read.append({"turn": turn, "step": step, "from": kind, "snippet": part.get("snippet")})
    return read


def _relations(items: Items, at: str, faults: _Faults) -> None:
    """Ids are unique; dependences point at tool.content items of the turn and close no circle."""
    faults += [f"{fault.field}: {fault.message}" for fault in turn_faults(items, f"{at}.items")]


def _sum(items: list[Any], at: str, faults: _Faults) -> None:
    weights = [i.get("weight") if isinstance(i, dict) else None for i in items]
    if all(map(_share, weights)):
        total = math.fsum(weights)
        faults.need(abs(total - 1) <= MENDABLE, f"{at}.items", f"weights sum to {total:g}, not 1")


def _weighed(items: Items) -> tuple[Items, bool]:
    total = math.fsum(i["weight"] for i in items)
    off = abs(total - 1)
    whole = off < ROUNDING or off > MENDABLE  # the latter is a fault like any other
    return [
        {**i, "weight": float(i["weight"] if whole else i["weight"] / total)} for i in items
    ], off > TOLERANCE


def _whole(value: Any) -> int:
    """A count, or -1 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


def _share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
