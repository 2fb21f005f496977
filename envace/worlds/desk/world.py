"""The desk's executable world: typed tools over a hidden database of orders, accounts and bookings.

Flows in: tool calls of one episode. Flows out: observations, each the tool's true response or a refusal
`{"error": "<short sentence>"}`.
Invariant: a response depends on the database and the calls made before, on nothing else; a refused call
changes nothing; no argument, however odd, raises.

Database, one row a kind (money in whole euros):
{"orders": {"#kite": {"status": "pending", "total": 40, "city": "oslo"}},
 "accounts": {"#wolf": {"state": "open", "credit": 15, "order": "#kite", "booking": "#ruby"}},
 "bookings": {"#ruby": {"status": "held", "day": "mon", "seats": 2}}}

Refusals: bad id; not found; an order, a booking or an account in the wrong state; total over the limit; credit
left; no delivery there; closed on that day; too many seats; and, of calls that reach no rule, unknown tool and
bad arguments.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence

from envace.errors import DataError
from envace.types import JSON, Observation, Record, Source, Task, ToolCall
from envace.worlds.desk.tools import BY_KIND, CITIES, CLOSED, FIELDS, MAX_SEATS, REFUND_LIMIT, SPECS, Spec

ID = re.compile(r"#[a-z]+")
Database = dict[str, dict[str, dict[str, JSON]]]


class Refusal(Exception):
    """A business rule says no; the message is what the caller reads."""


class World:
    """One episode's copy of the database."""

    # refusals of calls that never reach a business rule; a validator in front may word them otherwise
    MALFORMED = ("unknown tool", "bad arguments")

    def __init__(self, database: Database):
        """`database` is copied; raises DataError when it is not the mapping this module's docstring shows."""
        for table, fields in FIELDS.items():
            rows = database.get(table) if isinstance(database, dict) else None
            if not isinstance(rows, dict) or not all(_typed(r, fields) for r in rows.values()):
                raise DataError(f"a desk world needs a table {table!r} of rows with {', '.join(fields)}")
        self.tables: Database = {table: copy.deepcopy(database[table]) for table in FIELDS}

    @classmethod
    def from_task(cls, task: Task) -> World:
        """A fresh world of a task; raises DataError when the task brings none of this kind."""
        if not task.world or task.world.get("kind") != "desk":
            raise DataError(
                f"task {task.id} brings no desk world: its field `world` is empty or of another kind"
            )
        return cls(task.world)

    @classmethod
    def from_records(cls, records: Sequence[Record]) -> World:
        """The world as the records show it: the earliest look-up of each object is its initial state."""
        tables: Database = {table: {} for table in FIELDS}
        for record in records:
            spec = SPECS.get(record.call.name)
            if spec and not spec.writes and isinstance(record.result, dict) and spec.key in record.result:
                found = dict(record.result)
                tables[spec.table].setdefault(found.pop(spec.key), found)
        return cls(tables)

    def call(self, call: ToolCall) -> Observation:
        """Answer one call; a refusal is an observation with `error` set."""
        try:
            content = self._answer(call)
        except Refusal as refusal:
            return Observation(content={"error": str(refusal)}, source=Source.ENVIRONMENT, error=True)
        return Observation(content=content, source=Source.ENVIRONMENT)

    def state(self) -> Database:
        """The database as it stands, a copy."""
        return copy.deepcopy(self.tables)

    def _answer(self, call: ToolCall) -> dict[str, JSON]:
        spec = SPECS.get(call.name)
        if spec is None:
            raise Refusal("unknown tool")
        given = _arguments(spec, call.arguments)
        key = given[spec.key]
        row = self._find(spec, key)
        if not spec.writes:
            return {spec.key: key, **row}
        if row[spec.state] != spec.needs:
            raise Refusal(f"{spec.kind} is not {spec.needs}")
        return {spec.key: key, **RULES[call.name](row, given)}

    def _find(self, spec: Spec, key: JSON) -> dict[str, JSON]:
        if not ID.fullmatch(str(key)):
            raise Refusal("bad id")
        if key not in self.tables[spec.table]:
            raise Refusal(f"{spec.kind} not found")
        return self.tables[spec.table][key]


# --- what each change does to its row: what the caller is told, or a Refusal ----------------------------------

Row = dict[str, JSON]


def _cancel_order(row: Row, given: Row) -> Row:
    row["status"] = "cancelled"
    return {"status": "cancelled", "refund": row["total"]}


def _refund_order(row: Row, given: Row) -> Row:
    if row["total"] > REFUND_LIMIT:
        raise Refusal(f"total is over {REFUND_LIMIT}")
    row["status"] = "refunded"
    return {"status": "refunded", "refund": row["total"]}


def _change_address(row: Row, given: Row) -> Row:
    if given["city"] not in CITIES:
        raise Refusal("no delivery there")
    row["city"] = given["city"]
    return {"city": given["city"]}


def _unlock_account(row: Row, given: Row) -> Row:
    row["state"] = "open"
    return {"state": "open"}


def _close_account(row: Row, given: Row) -> Row:
    if row["credit"] > 0:
        raise Refusal("credit is left")
    row["state"] = "closed"
    return {"state": "closed"}


def _confirm_booking(row: Row, given: Row) -> Row:
    row["status"] = "confirmed"
    return {"status": "confirmed"}


def _cancel_booking(row: Row, given: Row) -> Row:
    row["status"] = "cancelled"
    return {"status": "cancelled"}


def _move_booking(row: Row, given: Row) -> Row:
    if given["day"] == CLOSED:
        raise Refusal("closed that day")
    row["day"] = given["day"]
    return {"day": given["day"]}


def _set_seats(row: Row, given: Row) -> Row:
    if given["seats"] > MAX_SEATS:
        raise Refusal("too many seats")
    row["seats"] = given["seats"]
    return {"seats": given["seats"]}


RULES: dict[str, Callable[[Row, Row], Row]] = {
    "cancel_order": _cancel_order,
    "refund_order": _refund_order,
    "change_address": _change_address,
    "unlock_account": _unlock_account,
    "close_account": _close_account,
    "confirm_booking": _confirm_booking,
    "cancel_booking": _cancel_booking,
    "move_booking": _move_booking,
    "set_seats": _set_seats,
}


def lookup_call(kind: str, object_id: str) -> ToolCall:
    """The call that looks an object up: `lookup_call("order", "#kite")`."""
    spec = BY_KIND[kind]
    return ToolCall(name=spec.name, arguments={spec.key: object_id})


def _typed(row: JSON, fields: dict[str, type]) -> bool:
    return isinstance(row, dict) and all(_is(row.get(k), kind) for k, kind in fields.items())


def _is(value: JSON, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _arguments(spec: Spec, given: JSON) -> Row:
    """The arguments when they fit the tool's schema; Refusal otherwise."""
    if not isinstance(given, dict) or set(given) != set(spec.parameters):
        raise Refusal("bad arguments")
    for name, schema in spec.parameters.items():
        fits = _is(given[name], int if schema["type"] == "integer" else str)
        if not fits or given[name] not in schema.get("enum", [given[name]]):
            raise Refusal("bad arguments")
        if schema["type"] == "integer" and given[name] < schema.get("minimum", given[name]):
            raise Refusal("bad arguments")
    return given
