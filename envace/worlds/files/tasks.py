"""The task generator of the files world.

Flows in: a seed and a number. Flows out: tasks with hidden tree, scripted user turns, checklist, records and
the expert's reference dialogue.
Invariant: the same arguments give the same tasks, no two of which are alike, and a longer list starts with
the shorter one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from envace.types import JSON, Message, Record, Task, ToolCall
from envace.worlds.files.checklist import items
from envace.worlds.files.expert import CHANGE, DONE, LOOK_UP, Goal, next_step
from envace.worlds.files.tools import LIMIT, SCHEMAS
from envace.worlds.files.world import FilesWorld, parent
from envace.worlds.registry import play

DIRS = "docs logs music notes photos mail games books".split()
NAMES = "kite maple ember delta frost lunar amber cedar coral dune ferry grove haven ivory jade river".split()
VERBS = "call buy send meet ask book".split()
WORDS = "lemon tulip otter violin candle saddle pepper ribbon walnut anchor basket mirror".split()
SMALL, LARGE = (4, 8, 15, 23, 42), (90, 120)  # sizes within and above the limit
SYSTEM = "You keep a tree of files. Look first. Say sorry when it cannot be done."

ASK = {
    "read": ("what does {what} say", "read {what} to me"),
    "size": ("how large is {what}", "what is the size of {what}"),
    "count": ("how many files are in {what}", "count the files in {what}"),
    "find": ("find {what}", "where is {what}"),
    "delete": ("delete {what}", "please remove {what}"),
    "move": ("move {what} to {to}", "please put {what} at {to}"),
    "copy": ("copy {what} to {to}", "please make a copy of {what} at {to}"),
}
FIRST = "read read2 size size2 count find delete move copy delete@ move@ copy@".split()
SECOND = "read size count find delete move copy again again again".split()  # again: what turn 0 was about


def generate(seed: int, n: int) -> list[Task]:
    """The first `n` tasks, ids `files-held-<k>`."""
    tasks: list[Task] = []
    for draft in _drafts(seed):
        if len(tasks) >= n:
            break
        tasks.append(_task(f"files-held-{len(tasks)}", draft))
    return tasks


def _drafts(seed: int) -> Iterator[dict[str, JSON]]:
    """Different drafts without end."""
    known: set[str] = set()
    k = 0
    while True:
        draft = _draft(random.Random(f"files/{seed}/{k}"))
        k += 1
        text = json.dumps(draft, sort_keys=True)
        if text not in known:
            known.add(text)
            yield draft


def _draft(rng: random.Random) -> dict[str, JSON]:
    """What makes a task: the tree, the tools on offer, and per turn a goal and the user's words for it."""
    pick = _Pick(rng)
    goals = [pick.goal(rng.choice(FIRST))]
    if rng.random() < 0.45:
        kind = rng.choice(SECOND)
        goals.append(_again(goals[0]) if kind == "again" else pick.goal(kind))
    asks = [_ask(rng, goal, turn) for turn, goal in enumerate(goals)]
    return {"tree": pick.tree, "goals": goals, "asks": asks, "tools": _offer(rng, goals)}


class _Pick:
    """A random tree, and goals in it."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        *self.dirs, self.nowhere = rng.sample(DIRS, 3)  # the last is not in the tree
        *names, self.absent = rng.sample(NAMES, 5)
        self.words = rng.sample(WORDS, 5)
        paths = [f"{d}/{n}.txt" for n, d in zip(names, [*self.dirs, *rng.choices(self.dirs, k=2)])]
        self.files: dict[str, dict[str, JSON]] = {p: self._file(w) for p, w in zip(paths, self.words)}
        self.tree: dict[str, JSON] = {"dirs": sorted(self.dirs), "files": self.files}

    def _file(self, word: str) -> dict[str, JSON]:
        large = self.rng.random() < 0.25
        text = "" if large else f"{self.rng.choice(VERBS)} {word}"
        size = self.rng.choice(LARGE if large else SMALL)
        return {"text": text, "size": size, "locked": self.rng.random() < 0.3}

    def goal(self, kind: str) -> Goal:
        do, by_text = kind.rstrip("@2"), kind.endswith("@")
        if do in LOOK_UP:
            two = kind.endswith("2")
            return {
                "do": do,
                "files": self.rng.sample(sorted(self.files), 2) if two else [self._path()],
            }
        if do == "count":
            return {"do": do, "dir": self.nowhere if self.rng.random() < 0.15 else self.rng.choice(self.dirs)}
        if do == "find":
            return {"do": do, **self._by_text()}
        where = self._by_text() if by_text else {"file": self._path(do)}
        return {"do": do, **where, **({} if do == "delete" else {"to": self._to(where.get("file", ""))})}

    def _path(self, do: str = "") -> str:
        """A file, now and then one that is missing, a directory, or outside the root; often one to be
        changed."""
        odd = self.rng.random()
        if odd < 0.08:
            return f"{self.rng.choice(self.dirs)}/{self.absent}.txt"
        if odd < 0.14:
            return self.rng.choice(self.dirs)
        if odd < 0.22:
            return self.rng.choice((f"../{self.absent}.txt", f"/etc/{self.absent}.txt"))
        good = [p for p, f in self.files.items() if (f["size"] <= LIMIT if do == "copy" else not f["locked"])]
        return self.rng.choice(good if do and good and self.rng.random() < 0.5 else sorted(self.files))

    def _by_text(self) -> Goal:
        """A word of a small file with the directory it is in; now and then of none, or another directory."""
        small = [(p, f["text"].split()[1]) for p, f in self.files.items() if f["text"]]
        if not small or self.rng.random() < 0.15:
            return {"dir": self.rng.choice(self.dirs), "word": self.words[-1]}
        path, word = self.rng.choice(small)
        return {"dir": parent(path) if self.rng.random() < 0.85 else self.rng.choice(self.dirs), "word": word}

    def _to(self, path: str) -> str:
        """A free path; now and then a taken one, or one in a directory that is missing."""
        odd = self.rng.random()
        others = [p for p in sorted(self.files) if p != path]
        if odd < 0.15:
            return self.rng.choice(others)
        name = self.rng.choice([n for n in NAMES if not any(n in p for p in (*others, path))])
        return f"{self.nowhere if odd < 0.27 else self.rng.choice(self.dirs)}/{name}.txt"


def _again(goal: Goal) -> Goal:
    """A look at what the first turn was about."""
    if "word" in goal:
        return {"do": "find", "dir": goal["dir"], "word": goal["word"]}
    if "dir" in goal:
        return dict(goal)
    return {"do": "size", "files": goal.get("files") or [goal.get("to") or goal["file"]]}


def _ask(rng: random.Random, goal: Goal, turn: int) -> str:
    """The user's words."""
    if "word" in goal:
        what = f"the file in {goal['dir']} with the word {goal['word']}"
    else:
        what = goal.get("dir") or goal.get("file") or " and ".join(goal["files"])
    text = rng.choice(ASK[goal["do"]]).format(what=what, to=goal.get("to", ""))
    return ("now " if turn and rng.random() < 0.5 else "") + text


def _offer(rng: random.Random, goals: list[Goal]) -> list[str]:
    """The tools the goals need and others beside them, two to five in all."""
    needed = {name for goal in goals for name in _needs(goal)}
    others = [name for name in SCHEMAS if name not in needed]
    more = rng.sample(others, rng.randint(max(2, len(needed)), 5) - len(needed))
    return [name for name in SCHEMAS if name in needed or name in more]


def _needs(goal: Goal) -> list[str]:
    if goal["do"] in LOOK_UP:
        return [LOOK_UP[goal["do"]]]
    if goal["do"] in CHANGE:
        return [*(["find_text"] if "word" in goal else []), "file_info", CHANGE[goal["do"]]]
    return ["list_dir" if goal["do"] == "count" else "find_text"]


def _task(task_id: str, draft: dict[str, JSON]) -> Task:
    asks, goals, tree = draft["asks"], draft["goals"], draft["tree"]
    prefix = (Message(role="system", content=SYSTEM), Message(role="user", content=asks[0]))
    reference, made = play(
        prefix, asks[1:], lambda turn, seen: next_step(goals[turn], seen), FilesWorld(tree)
    )
    return Task(
        id=task_id,
        prefix=prefix,
        user_turns=tuple(asks[1:]),
        tools=tuple(SCHEMAS[n] for n in draft["tools"]),
        checklist=tuple(items(g) for g in goals),
        records=with_nearby(made, tree),
        source="files",
        tags=_tags(goals, reference),
        world={"kind": "files", **tree, "goals": goals},
        reference=reference,
    )


def with_nearby(made: tuple[Record, ...], tree: dict[str, JSON]) -> tuple[Record, ...]:
    """The expert's records by turn, and after those of turn 0 a look-up of each path it left out there."""
    first = [r for r in made if r.turn == 0]
    world = FilesWorld(tree)
    calls = [ToolCall(name="list_dir", arguments={"path": d}) for d in (".", *sorted(world.dirs))]
    for path, file in world.files.items():
        tools = ("file_info", "read_file") if file["size"] <= LIMIT else ("file_info",)
        calls += [ToolCall(name=tool, arguments={"path": path}) for tool in tools]
    known = [r.call for r in first]
    nearby = [Record(turn=0, call=c, result=world.call(c).content) for c in calls if c not in known]
    return (*first, *nearby, *(r for r in made if r.turn))


def _tags(goals: list[Goal], reference: tuple[Message, ...]) -> tuple[str, ...]:
    tags = [g["do"] + "@" * ("word" in g and g["do"] in DONE) for g in goals]
    tags += ["two_turns"] * (len(goals) > 1) + ["parallel"] * any(len(m.calls) > 1 for m in reference)
    replies = [m.content for m in reference if m.role == "assistant" and not m.calls]
    tags += ["refused"] * any("sorry" in r or "error" in r for r in replies)
    return tuple(dict.fromkeys(tags))
