"""Tasks of the desk, from a seed.

Flows in: a seed, a split, a number. Flows out: `Task`s with one to three user turns, tools on offer,
checklist, recorded calls, the hidden world and the expert's reference dialogue.
Invariant: task k of a split depends on (seed, split, k) only; no task is in two splits. The split "unseen"
holds every task in which a tool meets an outcome of `UNSEEN`, and no other split has one: each of its tools
and each of its refusals occurs elsewhere, but never together. The split "validation", by which settings are
chosen, is drawn like "held" from a stream of its own.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator

from envace.types import JSON, Message, Record, Task
from envace.worlds import registry as worlds
from envace.worlds.desk.checklist import items
from envace.worlds.desk.expert import next_step
from envace.worlds.desk.goals import CHANGES, CREDITS, SEATS, TOTALS, Goal, kind_of, targets
from envace.worlds.desk.tools import BY_KIND, CITIES, CLOSED, DAYS, SPECS, TABLES
from envace.worlds.desk.world import Database, DeskWorld, lookup_call

WORDS = {
    "order": "kite maple ember delta frost lunar amber cedar coral dune ferry grove haven ivory jade lemon "
    "mango nova olive pearl river sable tulip willow acorn birch cloud drift flint heron iris nest",
    "account": "wolf bear lynx hawk seal crow moth toad",
    "booking": "ruby topaz opal onyx agate beryl garnet zircon quartz jasper",
}
HAS = {"order": 3, "account": 1, "booking": 2}  # objects of each kind in a task's database
NOWHERE = ("mars", "venus")  # places the desk does not deliver to
CROWDS = (7, 8, 9)  # seats no booking may have
BUCKETS = {"held": (0,), "validation": (0,), "train": (1,), "warm": (2, 3)}
"""Of four, by hash of a task's content."""
SPLITS = (*BUCKETS, "unseen")
UNSEEN = {  # (goal, outcome) that only the split "unseen" has
    ("cancel_order", "missing"),
    ("refund_order", "state"),
    ("close_account", "state"),
    ("confirm_booking", "missing"),
    ("cancel_booking", "state"),
    ("move_booking", "missing"),
}
MAX_CALLS = 6  # of the expert, in one task
MAX_TOOLS = 5  # on offer
SYSTEM = "You run a desk. Ids start with #. Look up first. Say sorry when it cannot be done."

ASK = {
    "look": ("tell me about {what}", "what about {what}"),
    "cancel_order": ("please cancel {what}", "cancel {what}"),
    "refund_order": ("i want a refund for {what}", "refund {what} please"),
    "change_address": ("send {what} to {new}", "please send {what} to {new}"),
    "unlock_account": ("unlock {what}", "please unlock {what}"),
    "close_account": ("close {what}", "please close {what}"),
    "confirm_booking": ("confirm {what}", "please confirm {what}"),
    "cancel_booking": ("please cancel {what}", "cancel {what}"),
    "move_booking": ("move {what} to {new}", "please move {what} to {new}"),
    "set_seats": ("i want {new} seats for {what}", "make {what} {new} seats"),
}


def generate(seed: int, split: str, n: int) -> list[Task]:
    """The first `n` tasks of a split, ids `desk-<split>-<k>`; ValueError on an unknown split."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; splits: {', '.join(SPLITS)}")
    tasks: list[Task] = []
    drafts = _drafts(seed, split)
    while len(tasks) < n:
        task = _task(f"desk-{split}-{len(tasks)}", next(drafts))
        if _belongs(task, split):
            tasks.append(task)
    return tasks


def _belongs(task: Task, split: str) -> bool:
    calls = sum(len(m.calls) for m in task.reference)
    return calls <= MAX_CALLS and ("unseen" in task.tags) == (split == "unseen")


def _drafts(seed: int, split: str) -> Iterator[dict[str, JSON]]:
    """Different drafts of one bucket, without end."""
    known: set[str] = set()
    stream = f"desk/{seed}/validation" if split == "validation" else f"desk/{seed}"
    k = 0
    while True:
        draft = _draft(random.Random(f"{stream}/{k}"))
        k += 1
        digest = hashlib.sha256(json.dumps(draft, sort_keys=True).encode()).hexdigest()
        here = int(digest[:8], 16) % 4 in BUCKETS.get(split, range(4))
        if here and digest not in known and len(draft["tools"]) <= MAX_TOOLS:
            known.add(digest)
            yield draft


# --- a draft: the database, and per turn a goal and the user's words for it -----------------------


def _draft(rng: random.Random) -> dict[str, JSON]:
    ids = {k: ["#" + w for w in rng.sample(WORDS[k].split(), n + 1)] for k, n in HAS.items()}
    database = _database(rng, ids)
    goals: list[Goal] = []
    for _ in range(rng.choices((1, 2, 3), (50, 33, 17))[0]):
        used = [i for g in goals for _, i in targets(g)]
        goals.append(_goal(rng, database, ids, used))
    asks = [_ask(rng, goal, turn) for turn, goal in enumerate(goals)]
    return {"database": database, "goals": goals, "asks": asks, "tools": _offer(rng, goals)}


def _database(rng: random.Random, ids: dict[str, list[str]]) -> Database:
    """Rows for all ids of a kind but the last, which does not exist."""
    rows: Database = {
        "orders": {i: _order(rng) for i in ids["order"][:-1]},
        "bookings": {i: _booking(rng) for i in ids["booking"][:-1]},
    }
    rows["accounts"] = {
        i: {
            "state": rng.choice(("open", "open", "locked")),
            "credit": 0 if rng.random() < 0.4 else rng.choice(CREDITS),
            "order": rng.choice(ids["order"][:-1]),
            "booking": rng.choice(ids["booking"][:-1]),
        }
        for i in ids["account"][:-1]
    }
    return rows


def _order(rng: random.Random) -> dict[str, JSON]:
    status = rng.choices(("pending", "shipped", "delivered", "cancelled"), (4, 2, 4, 1))[0]
    return {"status": status, "total": rng.choice(TOTALS), "city": rng.choice(CITIES)}


def _booking(rng: random.Random) -> dict[str, JSON]:
    status = rng.choices(("held", "confirmed", "cancelled"), (4, 5, 1))[0]
    day = rng.choice([d for d in DAYS if d != CLOSED])
    return {"status": status, "day": day, "seats": rng.choice(SEATS)}


def _goal(rng: random.Random, database: Database, ids: dict[str, list[str]], used: list[str]) -> Goal:
    if rng.random() < 0.3:
        return _look(rng, ids)
    do = rng.choice(list(CHANGES))
    kind = SPECS[do].kind
    if kind != "account" and rng.random() < 0.25:
        goal: Goal = {"do": do, "via": ids["account"][0]}
    else:
        goal = {"do": do, "id": _suited(rng, do, database, ids[kind], used)}
    return {**goal, **_argument(rng, do)}


def _look(rng: random.Random, ids: dict[str, list[str]]) -> Goal:
    """One object, two (asked for in parallel), or one that only an account leads to."""
    kind = rng.choice(("order", "booking"))
    how = rng.random()
    if how < 0.25:
        return {"do": "look", "via": ids["account"][-(rng.random() < 0.1)], "kind": kind}
    among = [(k, i) for k, of in ids.items() for i in (of if rng.random() < 0.25 else of[:-1])]
    chosen = rng.sample(among, 2 if how > 0.55 else 1)
    return {"do": "look", "of": [list(thing) for thing in chosen]}


def _suited(rng: random.Random, do: str, database: Database, ids: list[str], used: list[str]) -> str:
    """An object to change: one that is missing, one spoken of before, one in the right state, or any."""
    spec, known = SPECS[do], ids[:-1]
    if rng.random() < 0.08:
        return ids[-1]
    before = [i for i in known if i in used]
    if before and rng.random() < 0.3:
        return rng.choice(before)
    good = [i for i in known if database[spec.table][i][spec.state] == spec.needs]
    return rng.choice(good if good and rng.random() < 0.5 else known)


def _argument(rng: random.Random, do: str) -> dict[str, JSON]:
    """The city, day or number of seats a change is asked for, now and then one the desk refuses."""
    odd = rng.random() < 0.25
    if do == "change_address":
        return {"city": rng.choice(NOWHERE if odd else CITIES)}
    if do == "move_booking":
        return {"day": CLOSED if odd else rng.choice([d for d in DAYS if d != CLOSED])}
    if do == "set_seats":
        return {"seats": rng.choice(CROWDS if odd else SEATS)}
    return {}


def _ask(rng: random.Random, goal: Goal, turn: int) -> str:
    """The user's words; the # of an id is often left out."""
    named = [f"{k} {i if rng.random() < 0.4 else i[1:]}" for k, i in targets(goal)]
    what = f"the {kind_of(goal)} of {named[0]}" if "via" in goal else " and ".join(named)
    argument = CHANGES[goal["do"]].argument if goal["do"] in CHANGES else ""
    text = rng.choice(ASK[goal["do"]]).format(what=what, new=goal.get(argument, ""))
    return ("now " if turn and rng.random() < 0.5 else "") + text


def _offer(rng: random.Random, goals: list[Goal]) -> list[str]:
    """The tools the goals may need, and some they do not."""
    needed = {BY_KIND[k].name for g in goals for k, _ in targets(g)}
    needed |= {BY_KIND[kind_of(g)].name for g in goals if "via" in g}
    needed |= {g["do"] for g in goals if g["do"] in SPECS}
    others = [n for n in SPECS if n not in needed]
    least = max(2, len(needed))
    extra = rng.sample(others, rng.randint(least, max(least, MAX_TOOLS)) - len(needed))
    return [n for n in SPECS if n in needed or n in extra]


# --- a task from a draft --------------------------------------------------------------------------


def _task(task_id: str, draft: dict[str, JSON]) -> Task:
    asks, goals, database = draft["asks"], draft["goals"], draft["database"]
    prefix = (Message(role="system", content=SYSTEM), Message(role="user", content=asks[0]))
    reference, made = worlds.play(
        prefix, asks[1:], lambda turn, seen: next_step(goals[turn], seen), DeskWorld(database)
    )
    return Task(
        id=task_id,
        prefix=prefix,
        user_turns=tuple(asks[1:]),
        tools=tuple(SPECS[n].schema for n in draft["tools"]),
        checklist=tuple(items(g) for g in goals),
        records=with_nearby(made, database),
        source="desk",
        tags=_tags(goals, reference),
        world={"kind": "desk", **database, "goals": goals},
        reference=reference,
    )


def with_nearby(made: tuple[Record, ...], database: Database) -> tuple[Record, ...]:
    """The expert's records by turn, and after those of turn 0 a look-up of each object it left out there."""
    first = [r for r in made if r.turn == 0]
    world = DeskWorld(database)
    lookups = [lookup_call(kind, i) for kind, table in TABLES.items() for i in database[table]]
    nearby = [
        Record(turn=0, call=c, result=world.call(c).content)
        for c in lookups
        if c not in [r.call for r in first]
    ]
    return (*first, *nearby, *(r for r in made if r.turn))


def outcome(goal: Goal, turn: int, reference: tuple[Message, ...]) -> str:
    """How the expert's turn ended: ok | missing | state | limit | refused."""
    calls = [c for m in reference if m.turn == turn for c in m.calls]
    errors = ["error" in json.loads(m.content) for m in reference if m.turn == turn and m.role == "tool"]
    changed = [e for c, e in zip(calls, errors, strict=True) if SPECS[c.name].writes]
    if changed:
        return "refused" if changed[0] else "ok"
    if any(errors):
        return "missing"
    if goal["do"] == "look":
        return "ok"
    reply = [m.content for m in reference if m.turn == turn and m.role == "assistant"][-1]
    return "limit" if " has " in reply else "state"


def _tags(goals: list[Goal], reference: tuple[Message, ...]) -> tuple[str, ...]:
    outcomes = [outcome(g, t, reference) for t, g in enumerate(goals)]
    tags = [g["do"] for g in goals] + outcomes + [f"{len(goals)}_turns"]
    tags += ["via"] * any("via" in g for g in goals) + ["parallel"] * any(len(m.calls) > 1 for m in reference)
    tags += ["unseen"] * any((g["do"], o) in UNSEEN for g, o in zip(goals, outcomes))
    return tuple(dict.fromkeys(tags))
