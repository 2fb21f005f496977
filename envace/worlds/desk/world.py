"""The desk's executable world: typed tools over a hidden database of orders, accounts and bookings.

Flows in: tool calls of one episode. Flows out: observations, each the tool's true response or a refusal
`{"error": "<short sentence>"}`.
Invariant: a response depends on the database and the calls made before, on nothing else; a refused call
changes nothing; no argument, however odd, raises.

Database, one row a kind (money in whole euros):
{"orders": {"#kite": {"status": "pending", "total": 40, "city": "oslo"}},
 "accounts": {"#wolf": {"state": "open", "credit": 15, "order": "#kite", "booking": "#ruby"}},
 "bookings": {"#ruby": {"status": "held", "day": "mon", "seats": 2}}}

Refusals: bad id; not found; an order, a booking or an account in the wrong state; total over the limit;
credit left; no delivery there; closed on that day; too many seats; and, of calls that reach no rule, unknown
tool and bad arguments.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence

from envace.errors import DataError
from envace.types import JSON, Record, ToolCall
from envace.worlds.desk.tools import BY_KIND, CITIES, CLOSED, FIELDS, MAX_SEATS, REFUND_LIMIT, SPECS, Spec
from envace.worlds.registry import EmbeddedWorld, ToolRefusal

ID = re.compile(r"#[a-z]+")
Row = dict[str, JSON]
Database = dict[str, dict[str, Row]]


class DeskWorld(EmbeddedWorld):
    """One episode's copy of the database."""

    KIND = "desk"

    def __init__(self, database: Database):
        """`database` is copied; raises DataError when it is not the mapping this module's docstring shows."""
        for table, fields in FIELDS.items():
            rows = database.get(table) if isinstance(database, dict) else None
            if not isinstance(rows, dict) or not all(_typed(r, fields) for r in rows.values()):
                raise DataError(f"a desk world needs a table {table!r} of rows with {', '.join(fields)}")
        self.tables: Database = {table: copy.deepcopy(database[table]) for table in FIELDS}

    @classmethod
    def from_records(cls, records: Sequence[Record]) -> DeskWorld:
        """The world as the records show it: the earliest look-up of each object is its initial state."""
        tables: Database = {table: {} for table in FIELDS}
        for record in records:
            spec = SPECS.get(record.call.name)
            if spec and not spec.writes and isinstance(record.result, dict) and spec.key in record.result:
                found = dict(record.result)
                tables[spec.table].setdefault(found.pop(spec.key), found)
        return cls(tables)

    def state(self) -> Database:
        """The database as it stands, a copy."""
        return copy.deepcopy(self.tables)

    def answer(self, call: ToolCall) -> Row:
        spec = SPECS.get(call.name)
        if spec is None:
            raise ToolRefusal("unknown tool")
        given = _arguments(spec, call.arguments)
        key = given[spec.key]
        row = self._find(spec, key)
        if not spec.writes:
            return {spec.key: key, **row}
        if row[spec.state] != spec.needs:
            raise ToolRefusal(f"{spec.kind} is not {spec.needs}")
        return {spec.key: key, **_change(spec, row, given)}

    def _find(self, spec: Spec, key: JSON) -> Row:
        if not ID.fullmatch(str(key)):
            raise ToolRefusal("bad id")
        if key not in self.tables[spec.table]:
            raise ToolRefusal(f"{spec.kind} not found")
        return self.tables[spec.table][key]


# the state that a change without an argument leaves its object in
NEW_STATE = {
    "cancel_order": "cancelled",
    "refund_order": "refunded",
    "unlock_account": "open",
    "close_account": "closed",
    "confirm_booking": "confirmed",
    "cancel_booking": "cancelled",
}
# tool -> (whether a rule of the desk forbids the change, given the object and the arguments; what the caller
# reads)
FORBIDDEN: dict[str, tuple[Callable[[Row, Row], bool], str]] = {
    "refund_order": (lambda row, given: row["total"] > REFUND_LIMIT, f"total is over {REFUND_LIMIT}"),
    "change_address": (lambda row, given: given["city"] not in CITIES, "no delivery there"),
    "close_account": (lambda row, given: row["credit"] > 0, "credit is left"),
    "move_booking": (lambda row, given: given["day"] == CLOSED, "closed that day"),
    "set_seats": (lambda row, given: given["seats"] > MAX_SEATS, "too many seats"),
}


def _change(spec: Spec, row: Row, given: Row) -> Row:
    """Change an object as asked; what the caller is told. Raises ToolRefusal."""
    if spec.name in FORBIDDEN:
        forbids, why = FORBIDDEN[spec.name]
        if forbids(row, given):
            raise ToolRefusal(why)
    new = {spec.state: NEW_STATE[spec.name]} if not spec.takes else {name: given[name] for name in spec.takes}
    row.update(new)
    return {**new, "refund": row["total"]} if spec.name in ("cancel_order", "refund_order") else new


def lookup_call(kind: str, object_id: str) -> ToolCall:
    """The call that looks an object up: `lookup_call("order", "#kite")`."""
    spec = BY_KIND[kind]
    return ToolCall(name=spec.name, arguments={spec.key: object_id})


def _typed(row: JSON, fields: dict[str, type]) -> bool:
    return isinstance(row, dict) and all(_is(row.get(k), kind) for k, kind in fields.items())


def _is(value: JSON, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _arguments(spec: Spec, given: JSON) -> Row:
    """The arguments when they fit the tool's schema; ToolRefusal otherwise."""
    if not isinstance(given, dict) or set(given) != set(spec.parameters):
        raise ToolRefusal("bad arguments")
    for name, schema in spec.parameters.items():
        fits = _is(given[name], int if schema["type"] == "integer" else str)
        if not fits or given[name] not in schema.get("enum", [given[name]]):
            raise ToolRefusal("bad arguments")
        if schema["type"] == "integer" and given[name] < schema.get("minimum", given[name]):
            raise ToolRefusal("bad arguments")
    return given
