"""The desk's task generator.

Flows in: a seed, a split and a number. Flows out: tasks with hidden world, scripted user turns, checklist,
records and the expert's reference dialogue.
Invariant: the same arguments give the same tasks, and a longer list starts with the shorter one; a task's
content decides which split it may be in, so splits never share a task, whatever their seeds.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator

from envace.desk.checklist import items
from envace.desk.expert import NEEDS, Goal, play
from envace.desk.world import CITIES, TOOLS, Database, World
from envace.types import JSON, Message, Record, Task, ToolCall

ORDERS = (
    "kite maple ember delta frost lunar amber cedar coral dune ferry grove haven ivory jade lemon "
    "mango nova olive pearl river sable tulip willow acorn birch cloud drift flint heron iris nest"
).split()
ACCOUNTS = "wolf bear lynx hawk seal crow moth toad".split()
NOWHERE = ("mars", "venus")  # places the desk does not deliver to
CHEAP, DEAR = (15, 25, 40, 60, 75), (95, 120)  # totals within and above the refund limit
BUCKETS = {"held": (0,), "train": (1,), "warm": (2, 3)}  # of four, by hash of a task's content
SYSTEM = "You run an order desk. Ids start with #. Look up first. Say sorry when it cannot be done."

ASK = {
    "cancel": ("please cancel {what}", "cancel {what}"),
    "refund": ("i want a refund for {what}", "refund {what} please"),
    "move": ("send {what} to {city}", "please change the city of {what} to {city}"),
    "status": ("what is the status of {what}", "where is {what}"),
    "credit": ("how much credit does {what} have", "credit of {what} please"),
}
FIRST = (
    "status",
    "pair",
    "credit",
    "cancel",
    "refund",
    "move",
    "cancel@",
    "refund@",
)  # @: the order is found through the account
SECOND = (
    "status",
    "credit",
    "cancel",
    "refund",
    "move",
    "again",
)  # again: the order of the first turn, once more


def generate(seed: int, split: str, n: int) -> list[Task]:
    """The first `n` tasks of a split, ids `desk-<split>-<k>`; ValueError on an unknown split."""
    if split not in BUCKETS:
        raise ValueError(f"unknown split {split!r}; splits: {', '.join(BUCKETS)}")
    tasks: list[Task] = []
    for draft in _drafts(seed, split):
        if len(tasks) >= n:
            break
        tasks.append(_task(f"desk-{split}-{len(tasks)}", draft))
    return tasks


def _drafts(seed: int, split: str) -> Iterator[dict[str, JSON]]:
    """Different drafts of one split, without end."""
    known: set[str] = set()
    k = 0
    while True:
        draft = _draft(random.Random(f"desk/{seed}/{k}"))
        k += 1
        digest = hashlib.sha256(json.dumps(draft, sort_keys=True).encode()).hexdigest()
        if int(digest[:8], 16) % 4 in BUCKETS[split] and digest not in known:
            known.add(digest)
            yield draft


def _draft(rng: random.Random) -> dict[str, JSON]:
    """What makes a task: the database, and per turn a goal and the user's words for it."""
    words = rng.sample(ORDERS, 4)
    ids = ["#" + w for w in words]
    orders = {i: _order(rng) for i in ids[:3]}
    account = "#" + rng.choice(ACCOUNTS)
    database = {
        "orders": orders,
        "accounts": {account: {"order": rng.choice(ids[:3]), "credit": rng.randrange(5, 60, 5)}},
    }
    goals = [_goal(rng, rng.choice(FIRST), database, ids)]
    if goals[0]["do"] == "credit" or (rng.random() < 0.4 and "account" not in goals[0]):
        used = [*goals[0].get("orders", [goals[0].get("order")])]
        goals.append(
            _goal(rng, rng.choice(SECOND), database, [i for i in ids if i not in used] or ids, used[0])
        )
    return {"database": database, "goals": goals, "asks": [_ask(rng, g, t) for t, g in enumerate(goals)]}


def _order(rng: random.Random) -> dict[str, JSON]:
    status = rng.choice(("pending", "pending", "shipped", "delivered", "delivered"))
    return {
        "status": status,
        "total": rng.choice(CHEAP if rng.random() < 0.75 else DEAR),
        "city": rng.choice(CITIES),
    }


def _goal(
    rng: random.Random, kind: str, database: Database, ids: list[str], before: str | None = None
) -> Goal:
    """A goal over `ids`, of which the last is not in the database; `before` is the order of the turn before."""
    if kind == "again" and before is None or kind == "credit":
        [account] = database["accounts"]
        return {"do": "credit", "account": account}
    if kind == "again":
        return {"do": "status", "orders": [before]}
    if kind == "pair":
        return {"do": "status", "orders": rng.sample(ids if rng.random() < 0.2 else ids[:-1], 2)}
    do, via_account = kind.rstrip("@"), kind.endswith("@")
    if via_account:
        [account] = database["accounts"]
        return {"do": do, "account": account}
    order_id = ids[-1] if rng.random() < 0.08 else _suited(rng, do, database, ids[:-1])
    if do == "status":
        return {"do": do, "orders": [order_id]}
    return {
        "do": do,
        "order": order_id,
        **({"city": rng.choice(NOWHERE if rng.random() < 0.12 else CITIES)} if do == "move" else {}),
    }


def _suited(rng: random.Random, do: str, database: Database, ids: list[str]) -> str:
    """An order, more often than not one the goal can be done to."""
    good = [i for i in ids if database["orders"][i]["status"] == NEEDS.get(do)]
    return rng.choice(good if good and rng.random() < 0.5 else ids)


def _ask(rng: random.Random, goal: Goal, turn: int) -> str:
    """The user's words; the # of an id is often left out."""
    names = goal.get("orders") or [goal.get("order") or goal["account"]]
    shown = [n if rng.random() < 0.4 else n[1:] for n in names]
    if goal["do"] == "credit":
        what = f"account {shown[0]}"
    elif "account" in goal:
        what = f"the last order of account {shown[0]}"
    else:
        what = f"order{'s' * (len(shown) > 1)} {' and '.join(shown)}"
    text = rng.choice(ASK[goal["do"]]).format(what=what, city=goal.get("city", ""))
    return ("now " if turn and rng.random() < 0.5 else "") + text


def _task(task_id: str, draft: dict[str, JSON]) -> Task:
    asks, goals, database = draft["asks"], draft["goals"], draft["database"]
    prefix = (Message(role="system", content=SYSTEM), Message(role="user", content=asks[0]))
    reference, made = play(prefix, asks[1:], goals, World(database))
    return Task(
        id=task_id, prefix=prefix, user_turns=tuple(asks[1:]), tools=TOOLS, checklist=tuple(items(g) for g in goals),
        records=with_nearby(made, database), source="desk", tags=_tags(goals, reference),
        world={"kind": "desk", **database, "goals": goals}, reference=reference,
    )  # fmt: skip


def with_nearby(made: tuple[Record, ...], database: Database) -> tuple[Record, ...]:
    """The expert's records by turn, and after those of turn 0 a look-up of each object it left out there."""
    first = [r for r in made if r.turn == 0]
    world = World(database)
    lookups = [ToolCall(name="get_order", arguments={"order_id": i}) for i in world.orders]
    lookups += [ToolCall(name="get_account", arguments={"account_id": i}) for i in world.accounts]
    nearby = [
        Record(turn=0, call=c, result=world.call(c).content)
        for c in lookups
        if c not in [r.call for r in first]
    ]
    return (*first, *nearby, *(r for r in made if r.turn))


def _tags(goals: list[Goal], reference: tuple[Message, ...]) -> tuple[str, ...]:
    tags = [g["do"] + "@" * ("account" in g and g["do"] != "credit") for g in goals]
    tags += ["two_turns"] * (len(goals) > 1) + ["parallel"] * any(len(m.calls) > 1 for m in reference)
    tags += ["refused"] * any(
        m.role == "assistant" and ("sorry" in m.content or "not found" in m.content) for m in reference
    )
    return tuple(dict.fromkeys(tags))
