"""The scripted expert: what a perfect agent does next, given the goal and what it has seen.

Flows in: a turn's goal and the observations shown in that turn (true or rehearsed). Flows out: the next calls,
or the reply to the user.
Invariant: the expert decides on the observations shown and never reads the hidden database; only its REHEARSE
side does, which answers as the true world would.

Goals are data: `{"do": "status", "orders": ["#kite", "#dune"]}`, `{"do": "credit", "account": "#wolf"}`,
`{"do": "cancel", "order": "#kite"}`, `{"do": "refund", "account": "#wolf"}` (the account's last order),
`{"do": "move", "order": "#kite", "city": "lima"}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from envace.chat.calls import render_calls
from envace.chat.contract import render_result
from envace.chat.renderer import Renderer
from envace.desk.agents import Speaker
from envace.desk.world import REFUND_LIMIT, World
from envace.judge.rules import exchanges
from envace.rollout.policy import GenerationRequest
from envace.types import JSON, Message, Record, Role, Task, ToolCall

Seen = list[tuple[ToolCall, JSON]]  # this turn's calls with what was shown for them, in order
Goal = dict[str, JSON]

NEEDS = {"cancel": "pending", "refund": "delivered", "move": "pending"}  # status an order must have
TOOL_OF = {"cancel": "cancel_order", "refund": "refund_order", "move": "change_address"}


def next_step(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    """The calls to make now (several are parallel), or the reply that closes the turn."""
    if goal["do"] == "status":
        return _status(goal, seen)
    if goal["do"] == "credit":
        return _credit(goal, seen)
    return _change(goal, seen)


def _status(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    calls = [_get_order(i) for i in goal["orders"]]
    missing = [c for c in calls if shown(seen, c) is None]
    if missing:
        return missing
    told = [f"order {c.arguments['order_id']} is {_word(shown(seen, c), 'status')}" for c in calls]
    return " and ".join(told)


def _credit(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    call = _get_account(goal["account"])
    found = shown(seen, call)
    if found is None:
        return [call]
    return (
        f"account {goal['account']} has {_word(found, 'credit')}"
        if "credit" in found
        else f"sorry, account {goal['account']} is {_word(found, '')}"
    )


def _change(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    order_id = goal.get("order")
    if order_id is None:
        account = shown(seen, _get_account(goal["account"]))
        if account is None:
            return [_get_account(goal["account"])]
        order_id = account.get("order")
        if not isinstance(order_id, str):
            return f"sorry, account {goal['account']} is {_word(account, '')}"
    order = shown(seen, _get_order(order_id))
    if order is None:
        return [_get_order(order_id)]
    if order.get("status") != NEEDS[goal["do"]]:
        return f"sorry, order {order_id} is {_word(order, 'status')}"
    if goal["do"] == "refund" and over_limit(order):
        return f"sorry, order {order_id} is over {REFUND_LIMIT}"
    change = ToolCall(
        name=TOOL_OF[goal["do"]],
        arguments={"order_id": order_id, **({"city": goal["city"]} if goal["do"] == "move" else {})},
    )
    done = shown(seen, change)
    return [change] if done is None else _outcome(goal, order_id, done)


def _outcome(goal: Goal, order_id: str, done: dict[str, JSON]) -> str:
    if "error" in done:
        return f"sorry, {done['error']}"
    if goal["do"] == "refund":
        return f"order {order_id} is refunded, {done.get('refund')} back"
    return (
        f"order {order_id} is cancelled"
        if goal["do"] == "cancel"
        else f"order {order_id} goes to {goal['city']}"
    )


def over_limit(order: dict[str, JSON]) -> bool:
    """Whether the order's total is more than the desk may refund."""
    total = order.get("total")
    return isinstance(total, (int, float)) and total > REFUND_LIMIT


def _word(found: dict[str, JSON], key: str) -> str:
    """The value to tell the user: the field, else "not found" for a refused look-up."""
    return str(found[key]) if key in found else "not found" if "error" in found else "unknown"


def _get_order(order_id: str) -> ToolCall:
    return ToolCall(name="get_order", arguments={"order_id": order_id})


def _get_account(account_id: str) -> ToolCall:
    return ToolCall(name="get_account", arguments={"account_id": account_id})


def shown(seen: Seen, call: ToolCall) -> dict[str, JSON] | None:
    """The first response shown for this very call, None when there is none; what is no object counts as {}."""
    for made, content in seen:
        if made == call:
            known = content if isinstance(content, dict) else {}
            return {"error": known["error"]} if "error" in known else known
    return None


# --- the reference dialogue ---------------------------------------------------------------------------------


def play(
    prefix: Sequence[Message], later: Sequence[str], goals: Sequence[Goal], world: World
) -> tuple[tuple[Message, ...], tuple[Record, ...]]:
    """The expert's dialogue in a true world, and the calls it made with their results; `world` is changed."""
    messages, records = list(prefix), []
    for turn, goal in enumerate(goals):
        if turn:
            messages.append(Message(role="user", content=later[turn - 1], turn=turn))
        seen: Seen = []
        while not isinstance(step := next_step(goal, seen), str):
            messages.append(Message(role="assistant", content="", calls=tuple(step), turn=turn))
            for call in step:
                result = world.call(call).content
                seen.append((call, result))
                records.append(Record(turn=turn, call=call, result=result))
                messages.append(Message(role="tool", content=json.dumps(result), name=call.name, turn=turn))
        messages.append(Message(role="assistant", content=step, turn=turn))
    return tuple(messages), tuple(records)


def end_state(task: Task) -> World:
    """The world after the expert has played the task."""
    world = World.from_task(task)
    play(task.prefix, task.user_turns, task.world["goals"], world)
    return world


# --- the policy ---------------------------------------------------------------------------------------------


class ExpertPolicy(Speaker):
    """Plays ACT perfectly and REHEARSE truthfully, for one task or for many told apart by their id."""

    def __init__(self, task: Task | Iterable[Task], renderer: Renderer | None = None):
        super().__init__(renderer)
        self.tasks = {t.id: t for t in ([task] if isinstance(task, Task) else task)}
        self._worlds: dict[
            str, World
        ] = {}  # REHEARSE keeps one per episode, so that later calls see earlier ones

    def speak(self, request: GenerationRequest) -> str:
        task = self.tasks[request.task_id]
        if request.role is Role.REHEARSE:
            return self._rehearse(task, request)
        step = next_step(task.world["goals"][request.turn], seen_in_turn(request.messages))
        return step if isinstance(step, str) else render_calls(step)

    def _rehearse(self, task: Task, request: GenerationRequest) -> str:
        world = self._worlds.setdefault(request.episode_id, World.from_task(task))
        return render_result(world.call(request.call).content)


def seen_in_turn(messages: Sequence[Message]) -> Seen:
    """The calls since the last user message, each with the response shown for it."""
    start = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
    return [(e.call, e.content) for e in exchanges(messages[start:]) if e.shown is not None]
