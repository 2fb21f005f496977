"""The desk's tools as data: what each is called, takes, works on and needs.

Everything else about a tool is read from here: its JSON schema, the world's state check, the checklist's
conditions, the expert's plan.
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


@dataclass(frozen=True, slots=True)
class Spec:
    """One tool."""

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


REFUND, SEATS = f"up to {REFUND_LIMIT}", f"up to {MAX_SEATS} seats"
DAY: JSON = {"type": "string", "enum": list(DAYS)}
NUMBER: JSON = {"type": "integer", "minimum": 1}
SPECS = {
    spec.name: spec
    for spec in (
        Spec("get_order", "Look up an order.", "order"),
        Spec("get_account", "Look up an account.", "account"),
        Spec("get_booking", "Look up a booking.", "booking"),
        Spec("cancel_order", "Cancel a pending order.", "order", "pending"),
        Spec("refund_order", f"Refund a delivered order {REFUND}.", "order", "delivered"),
        Spec("change_address", "Send a pending order to a city.", "order", "pending", {"city": TEXT}),
        Spec("unlock_account", "Open a locked account.", "account", "locked"),
        Spec("close_account", "Close an open account without credit.", "account", "open"),
        Spec("confirm_booking", "Confirm a held booking.", "booking", "held"),
        Spec("cancel_booking", "Cancel a confirmed booking.", "booking", "confirmed"),
        Spec("move_booking", "Move a confirmed booking to a day.", "booking", "confirmed", {"day": DAY}),
        Spec("set_seats", f"Set a confirmed booking to {SEATS}.", "booking", "confirmed", {"seats": NUMBER}),
    )
}
BY_KIND = {s.kind: s for s in SPECS.values() if not s.writes}  # the look-up of each kind
WRITES = tuple(s.name for s in SPECS.values() if s.writes)
TOOLS = tuple(s.schema for s in SPECS.values())
