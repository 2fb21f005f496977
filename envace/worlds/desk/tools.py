"""The desk's tools as data: what each is called, takes, works on and needs.

Everything else about a tool is read from here: its JSON schema, the world's state check, the checklist's
conditions, the expert's plan. `SPECS["cancel_order"]` is
Spec(name="cancel_order", text="Cancel a pending order.", kind="order", needs="pending", ...).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from envace.types import JSON

CITIES = ("oslo", "rome", "lima", "cairo", "paris", "delhi", "quito", "tokyo")  # delivered to
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CLOSED = "sun"  # no booking on this day
REFUND_LIMIT = 80  # the largest total the desk may refund, in euros
MAX_SEATS = 6  # of one booking

TABLES = {"order": "orders", "account": "accounts", "booking": "bookings"}  # kind -> table
STATES = {
    "order": ("pending", "shipped", "delivered", "cancelled", "refunded"),
    "account": ("open", "locked", "closed"),
    "booking": ("held", "confirmed", "cancelled"),
}
FIELDS: dict[str, dict[str, type]] = {
    "orders": {"status": str, "total": int, "city": str},
    "accounts": {"state": str, "credit": int, "order": str, "booking": str},
    "bookings": {"status": str, "day": str, "seats": int},
}
TEXT: dict[str, JSON] = {"type": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    name: str
    text: str
    """What the schema says it does."""
    kind: str
    """Of object: order | account | booking."""
    needs: str = ""
    """State the object must be in; "" for a look-up."""
    takes: dict[str, JSON] = field(default_factory=dict)
    """Parameters beside the id, as JSON schema."""

    @property
    def key(self) -> str:
        return f"{self.kind}_id"

    @property
    def table(self) -> str:
        return TABLES[self.kind]

    @property
    def state(self) -> str:
        """The field that holds the object's state."""
        return "state" if self.kind == "account" else "status"

    @property
    def writes(self) -> bool:
        return bool(self.needs)

    @property
    def parameters(self) -> dict[str, JSON]:
        return {self.key: TEXT, **self.takes}

    @property
    def schema(self) -> dict[str, JSON]:
        body = {"type": "object", "properties": self.parameters, "required": list(self.parameters)}
        about = {"name": self.name, "description": self.text, "parameters": body}
        return {"type": "function", "function": about}


SPECS: dict[str, Spec] = {
    s.name: s
    for s in (
        Spec(name="get_order", text="Look up an order.", kind="order"),
        Spec(name="get_account", text="Look up an account.", kind="account"),
        Spec(name="get_booking", text="Look up a booking.", kind="booking"),
        Spec(name="cancel_order", text="Cancel a pending order.", kind="order", needs="pending"),
        Spec(
            name="refund_order",
            text=f"Refund a delivered order up to {REFUND_LIMIT}.",
            kind="order",
            needs="delivered",
        ),
        Spec(
            name="change_address",
            text="Send a pending order to a city.",
            kind="order",
            needs="pending",
            takes={"city": TEXT},
        ),
        Spec(name="unlock_account", text="Open a locked account.", kind="account", needs="locked"),
        Spec(
            name="close_account", text="Close an open account without credit.", kind="account", needs="open"
        ),
        Spec(name="confirm_booking", text="Confirm a held booking.", kind="booking", needs="held"),
        Spec(name="cancel_booking", text="Cancel a confirmed booking.", kind="booking", needs="confirmed"),
        Spec(
            name="move_booking",
            text="Move a confirmed booking to a day.",
            kind="booking",
            needs="confirmed",
            takes={"day": {"type": "string", "enum": list(DAYS)}},
        ),
        Spec(
            name="set_seats",
            text=f"Set a confirmed booking to up to {MAX_SEATS} seats.",
            kind="booking",
            needs="confirmed",
            takes={"seats": {"type": "integer", "minimum": 1}},
        ),
    )
}
BY_KIND = {s.kind: s for s in SPECS.values() if not s.writes}  # the look-up of each kind
WRITES = tuple(s.name for s in SPECS.values() if s.writes)
TOOLS = tuple(s.schema for s in SPECS.values())
