"""What a user of the desk may want, as data, and how its outcome is told.

A goal is plain data, stored with its task:
{"do": "look", "of": [["order", "#kite"], ["booking", "#ruby"]]}      tell what they are
{"do": "look", "via": "#wolf", "kind": "order"}                       the order of that account
{"do": "cancel_order", "id": "#kite"}                                 a change; `do` is the tool that makes it
{"do": "move_booking", "via": "#wolf", "day": "fri"}                  the booking of that account, with an
argument

Invariant: every outcome tells a value that only an observation holds, so that an agent which reads none can
only guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from envace.types import JSON
from envace.worlds.desk.tools import CITIES, DAYS, REFUND_LIMIT, SPECS, STATES

Goal = dict[str, JSON]

TOTALS = (15, 25, 40, 60, 75, 95, 120)  # what orders cost
CREDITS = (0, 5, 10, 20, 35, 50)  # what accounts hold
SEATS = (1, 2, 3, 4, 5, 6)
VALUES: dict[str, tuple[JSON, ...]] = {
    "total": TOTALS,
    "credit": CREDITS,
    "city": CITIES,
    "day": DAYS[:-1],  # no booking on the day the desk is closed
    "seats": SEATS,
}
LOOKS = {  # kind -> the fields a look-up is told with, and the words
    "order": (("status", "city"), "order {id} to {city} is {status}"),
    "account": (("credit",), "account {id} has {credit}"),
    "booking": (("status", "day"), "booking {id} on {day} is {status}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change's argument, the field of the looked-up object its outcome is told with, and a limit on a
    field."""

    tell: str
    done: str
    """Words of success; {new} is the argument."""
    argument: str = ""
    limit: tuple[str, int] | None = None
    """(field, largest value the desk goes along with)."""


CHANGES: dict[str, Change] = {
    "cancel_order": Change(tell="total", done="order {id} is cancelled, {total} back"),
    "refund_order": Change(
        tell="total", done="order {id} is refunded, {total} back", limit=("total", REFUND_LIMIT)
    ),
    "change_address": Change(tell="city", done="order {id} goes to {new}, not {city}", argument="city"),
    "unlock_account": Change(tell="credit", done="account {id} is open with {credit}"),
    "close_account": Change(
        tell="order", done="account {id} of order {order} is closed", limit=("credit", 0)
    ),
    "confirm_booking": Change(tell="day", done="booking {id} on {day} is confirmed"),
    "cancel_booking": Change(tell="day", done="booking {id} on {day} is cancelled"),
    "move_booking": Change(tell="day", done="booking {id} goes to {new}, not {day}", argument="day"),
    "set_seats": Change(tell="seats", done="booking {id} has {new} seats, not {seats}", argument="seats"),
}


def kind_of(goal: Goal) -> str:
    """The kind of object a change, or a look through an account, is about."""
    return goal["kind"] if goal["do"] == "look" else SPECS[goal["do"]].kind


def targets(goal: Goal) -> list[tuple[str, str]]:
    """(kind, id) of the objects the user names."""
    if "via" in goal:
        return [("account", goal["via"])]
    if goal["do"] == "look":
        return [(kind, i) for kind, i in goal["of"]]
    return [(kind_of(goal), goal["id"])]


def said_words(field: str, kind: str) -> tuple[JSON, ...]:
    """All values a field may have, () when there is no list of them (ids)."""
    return STATES[kind] if field in ("status", "state") else VALUES.get(field, ())
