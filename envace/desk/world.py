"""The desk's executable world: typed tools over a hidden database of orders and accounts.

Flows in: tool calls of one episode. Flows out: observations, each the tool's true response or a refusal
`{"error": "<short sentence>"}`.
Invariant: a response depends on the database and the calls made before, on nothing else; a refused call
changes nothing; no argument, however odd, raises.

Database: `{"orders": {"#kite": {"status": "pending", "total": 40, "city": "oslo"}},
"accounts": {"#wolf": {"order": "#kite", "credit": 15}}}`. Money is in whole euros.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence

from envace.errors import DataError
from envace.types import JSON, Observation, Record, Source, Task, ToolCall

STATUSES = ("pending", "shipped", "delivered", "cancelled", "refunded")
CITIES = (
    "oslo",
    "rome",
    "lima",
    "cairo",
    "paris",
    "delhi",
    "quito",
    "tokyo",
)  # the desk delivers to these only
REFUND_LIMIT = 80  # the largest total the desk may refund, in euros
ID = re.compile(r"#[a-z]+")

FIELDS: dict[str, dict[str, type]] = {
    "orders": {"status": str, "total": int, "city": str},
    "accounts": {"order": str, "credit": int},
}

Database = dict[str, dict[str, dict[str, JSON]]]


class Refusal(Exception):
    """A business rule says no; the message is what the caller reads."""


class World:
    """One episode's copy of the database."""

    def __init__(self, database: Database):
        """`database` is copied; raises DataError when it is not the mapping this module's docstring shows."""
        for table, fields in FIELDS.items():
            rows = database.get(table) if isinstance(database, dict) else None
            if not isinstance(rows, dict) or not all(
                isinstance(r, dict) and _typed(r, fields) for r in rows.values()
            ):
                raise DataError(f"a desk world needs a table {table!r} of rows with {', '.join(fields)}")
        self.orders = copy.deepcopy(database["orders"])
        self.accounts = copy.deepcopy(database["accounts"])

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
        tables: Database = {"orders": {}, "accounts": {}}
        for record in records:
            table, key = LOOKUPS.get(record.call.name, ("", ""))
            if table and isinstance(record.result, dict) and key in record.result:
                found = dict(record.result)
                tables[table].setdefault(found.pop(key), found)
        return cls(tables)

    def call(self, call: ToolCall) -> Observation:
        """Answer one call; a refusal is an observation with `error` set."""
        try:
            tool = BY_NAME.get(call.name)
            if tool is None:
                raise Refusal("unknown tool")
            content = tool(self, **_arguments(call))
        except Refusal as refusal:
            return Observation(content={"error": str(refusal)}, source=Source.ENVIRONMENT, error=True)
        return Observation(content=content, source=Source.ENVIRONMENT)

    def state(self) -> dict[str, JSON]:
        """The database as it stands, a copy."""
        return copy.deepcopy({"orders": self.orders, "accounts": self.accounts})

    # --- tools --------------------------------------------------------------------------------------------

    def get_order(self, order_id: str) -> dict[str, JSON]:
        return {"order_id": order_id, **self._order(order_id)}

    def get_account(self, account_id: str) -> dict[str, JSON]:
        return {"account_id": account_id, **_find(self.accounts, account_id, "account")}

    def cancel_order(self, order_id: str) -> dict[str, JSON]:
        order = self._order(order_id, "pending")
        order["status"] = "cancelled"
        return {"order_id": order_id, "status": "cancelled"}

    def refund_order(self, order_id: str) -> dict[str, JSON]:
        order = self._order(order_id, "delivered")
        if order["total"] > REFUND_LIMIT:
            raise Refusal(f"total is over {REFUND_LIMIT}")
        order["status"] = "refunded"
        return {"order_id": order_id, "refund": order["total"]}

    def change_address(self, order_id: str, city: str) -> dict[str, JSON]:
        order = self._order(order_id, "pending")
        if city not in CITIES:
            raise Refusal("no delivery there")
        order["city"] = city
        return {"order_id": order_id, "city": city}

    def _order(self, order_id: str, status: str = "") -> dict[str, JSON]:
        order = _find(self.orders, order_id, "order")
        if status and order["status"] != status:
            raise Refusal(f"order is not {status}")
        return order


def _typed(row: dict[str, JSON], fields: dict[str, type]) -> bool:
    return all(isinstance(row.get(k), kind) for k, kind in fields.items())


def _find(table: dict[str, dict[str, JSON]], key: str, what: str) -> dict[str, JSON]:
    if not ID.fullmatch(key):
        raise Refusal("bad id")
    if key not in table:
        raise Refusal(f"{what} not found")
    return table[key]


def _arguments(call: ToolCall) -> dict[str, str]:
    given, wanted = call.arguments, PARAMETERS[call.name]
    if (
        not isinstance(given, dict)
        or set(given) != set(wanted)
        or any(not isinstance(v, str) for v in given.values())
    ):
        raise Refusal("bad arguments")
    return given


def _schema(name: str, description: str, parameters: Sequence[str]) -> dict[str, JSON]:
    properties = {p: {"type": "string"} for p in parameters}
    body = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": body}}


# name -> (what it does, parameters, whether it changes the database); the one list all else is read from
_TOOLS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "get_order": ("Look up an order.", ("order_id",), False),
    "cancel_order": ("Cancel a pending order.", ("order_id",), True),
    "refund_order": (f"Refund a delivered order up to {REFUND_LIMIT}.", ("order_id",), True),
    "change_address": ("Send a pending order to a city.", ("order_id", "city"), True),
    "get_account": ("Look up an account.", ("account_id",), False),
}
TOOLS: tuple[dict[str, JSON], ...] = tuple(
    _schema(n, text, params) for n, (text, params, _) in _TOOLS.items()
)
PARAMETERS: dict[str, tuple[str, ...]] = {n: params for n, (_, params, _) in _TOOLS.items()}
WRITES: tuple[str, ...] = tuple(n for n, (_, _, writes) in _TOOLS.items() if writes)
BY_NAME: dict[str, Callable[..., dict[str, JSON]]] = {n: getattr(World, n) for n in _TOOLS}
LOOKUPS = {"get_order": ("orders", "order_id"), "get_account": ("accounts", "account_id")}
# refusals of calls that never reach a business rule; a validator in front may word them otherwise
MALFORMED = ("unknown tool", "bad arguments")


def same_state(a: World, b: World) -> bool:
    """Whether two worlds hold equal databases."""
    return json.dumps(a.state(), sort_keys=True) == json.dumps(b.state(), sort_keys=True)
