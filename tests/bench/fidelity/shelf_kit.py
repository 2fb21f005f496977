"""A world of one shelf, small enough to know every number by heart, and tasks in it."""

from __future__ import annotations

import json

from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams
from envace.policy.scripted import ScriptedPolicy
from envace.types import Item, Message, Observation, Record, Role, Source, Task, ToolCall
from envace.worlds.registry import kinds, register

ROOMY = RolloutParams(prompt_tokens=20000, response_tokens=2000)
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}},
                "required": ["item"],
            },
        },
    }
    for name in ("look", "take")
)


class Shelf:
    """`look` tells how many are left, `take` takes one; what is not there is refused."""

    def __init__(self, stock):
        self.stock = dict(stock)

    @classmethod
    def from_task(cls, task):
        return cls(task.world["stock"])

    def call(self, call):
        item = call.arguments.get("item")
        if not self.stock.get(item):
            return Observation(content={"error": "not here"}, source=Source.ENVIRONMENT, error=True)
        self.stock[item] -= call.name == "take"
        told = {"item": item, "left": self.stock[item]} if call.name == "look" else {"taken": item}
        return Observation(content=told, source=Source.ENVIRONMENT)

    def state(self):
        return self.stock


if "shelf" not in kinds():
    register("shelf", Shelf)


def call(name, item):
    return ToolCall(name=name, arguments={"item": item})


def says(task_id, left, item="kite"):
    """The reply must name what the look-up showed."""
    seen = {"seen": {"tool": "look", "args": {"item": item}, "path": "left"}}
    return Item(
        id="C0",
        question="Tells how many are left?",
        pass_condition="The number shown.",
        weight=1.0,
        focus_on="assistant.content.user_visible_reply",
        required_for_next_turn=True,
        rule={"kind": "says", "all": [seen]},
    )


def shelf_task(k, left=3, item="kite"):
    """One turn: look, then tell; the look-up is on record."""
    prefix = (Message(role="user", content=f"how many {item} are left"),)
    look, told = call("look", item), {"item": item, "left": left}
    reference = (
        *prefix,
        Message(role="assistant", content="", calls=(look,)),
        Message(role="tool", content=json.dumps(told), name="look"),
        Message(role="assistant", content=f"{left} left"),
    )
    return Task(
        id=f"shelf-{k}",
        prefix=prefix,
        tools=TOOLS,
        checklist=((says(k, left, item),),),
        source="shelf",
        records=(Record(turn=0, call=look, result=told),),
        reference=reference,
        world={"kind": "shelf", "stock": {item: left, "lamp": 1}},
    )


def player(imagine, item="kite"):
    """Looks, then tells the number it was shown; as REHEARSE it answers `imagine(call)`."""
    from envace.chat.calls import render_calls
    from envace.chat.contract import render_result

    def speak(request):
        if request.role is Role.REHEARSE:
            return render_result(imagine(request.call))
        if request.messages[-1].role == "user":
            return render_calls([call("look", item)])
        return f"{json.loads(request.messages[-1].content).get('left')} left"

    return ScriptedPolicy(speak, ByteRenderer())
