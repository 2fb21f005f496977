"""The shapes a reply must have, for servers that can hold a model to one.

Flows in: nothing. Flows out: `VERDICT` and `LABEL`, as `response_format` wants them.
Invariant: what a schema cannot say (sums, places that exist, cycles) is checked after the reply.
"""

from __future__ import annotations

from envace.data.checklist import EVIDENCE, FOCUS
from envace.types import JSON


def _object(**properties: JSON) -> dict[str, JSON]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(of: JSON) -> dict[str, JSON]:
    return {"type": "array", "items": of}


TEXT, WHOLE, YES_NO = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}

VERDICT: dict[str, JSON] = {
    "name": "verdict",
    "strict": True,
    "schema": _object(errors=_list(_object(turn=WHOLE, step=WHOLE, what=TEXT)), no_error=YES_NO),
}

_EVIDENCE = _object(
    turn=WHOLE, step=WHOLE, **{"from": {"type": "string", "enum": list(EVIDENCE)}}, snippet=TEXT
)
_ITEM = _object(
    id=TEXT,
    evidence=_list(_EVIDENCE),
    focus_on={"type": "string", "enum": list(FOCUS)},
    question=TEXT,
    pass_condition=TEXT,
    failure_examples=_list(TEXT),
    required_for_next_turn=YES_NO,
    dependence=_list(TEXT),
    weight={"type": "number"},
)
LABEL: dict[str, JSON] = {
    "name": "checklists",
    "strict": True,
    "schema": _object(turns=_list(_object(turn=WHOLE, items=_list(_ITEM)))),
}
