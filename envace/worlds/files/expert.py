"""The scripted expert of the files world: what a perfect agent does next, given the goal and what it has
seen.

Flows in: a turn's goal and the observations shown in that turn. Flows out: the next calls, or the closing
reply.
Invariant: the expert decides on the observations shown and never reads the hidden tree.

Goals are data: `{"do": "read" | "size", "files": ["docs/kite.txt", "logs/dune.txt"]}`, `{"do": "count",
"dir": "docs"}`, `{"do": "find", "dir": "docs", "word": "lemon"}`, and `{"do": "delete" | "move" | "copy",
...}` with the file as `"file": "docs/kite.txt"`, or as the one in `"dir"` that has `"word"`; move and copy
also have `"to": "logs/kite.txt"`.
"""

from __future__ import annotations

from envace.types import JSON, ToolCall
from envace.worlds.files.tools import LIMIT
from envace.worlds.registry import Seen

Goal = dict[str, JSON]
LOOK_UP = {"read": "read_file", "size": "file_info"}
TOLD = {"read": ("says", "text"), "size": ("has", "size")}  # verb and field of the reply
CHANGE = {"delete": "delete_file", "move": "move_file", "copy": "copy_file"}
DONE = {"delete": "deleted", "move": "moved", "copy": "copied"}


def next_step(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    """The calls to make now (several are parallel), or the reply that closes the turn."""
    if goal["do"] in LOOK_UP:
        return _look_up(goal, seen)
    if goal["do"] == "count":
        found = shown(seen, call := _call("list_dir", path=goal["dir"]))
        return [call] if found is None else _told(found, f"{goal['dir']} has {found.get('count')} files")
    if goal["do"] == "find":
        found = shown(seen, call := finder(goal))
        return [call] if found is None else _told(found, f"it is in {found.get('file')}")
    return _change(goal, seen)


def _look_up(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    calls = [_call(LOOK_UP[goal["do"]], path=path) for path in goal["files"]]
    if missing := [c for c in calls if shown(seen, c) is None]:
        return missing
    verb, key = TOLD[goal["do"]]
    parts = []
    for call in calls:
        found = shown(seen, call) or {}
        told = f"gives an error, {found['error']}" if "error" in found else f"{verb} {found.get(key)}"
        parts.append(f"{call.arguments['path']} {told}")
    return " and ".join(parts)


def _change(goal: Goal, seen: Seen) -> list[ToolCall] | str:
    path = goal.get("file")
    if path is None:
        found = shown(seen, finder(goal))
        if found is None:
            return [finder(goal)]
        path = found.get("file")
        if not isinstance(path, str):
            return _told(found, "sorry, no such file")
    info = shown(seen, look := _call("file_info", path=path))
    if info is None:
        return [look]
    if "error" in info:
        return _told(info, "")
    if goal["do"] == "copy" and over_limit(info):
        return f"sorry, {path} is too large, size {info['size']}"
    if goal["do"] != "copy" and info.get("locked") is True:
        return f"sorry, {path} is locked"
    done = shown(seen, call := _call(CHANGE[goal["do"]], path=path, **_target(goal)))
    return [call] if done is None else _told(done, _outcome(goal, path))


def _target(goal: Goal) -> dict[str, str]:
    return {"to": goal["to"]} if "to" in goal else {}


def _outcome(goal: Goal, path: str) -> str:
    return f"{path} is {DONE[goal['do']]}" + (f" to {goal['to']}" if "to" in goal else "")


def _told(found: dict[str, JSON], told: str) -> str:
    return f"sorry, {found['error']}" if "error" in found else told


def over_limit(info: dict[str, JSON]) -> bool:
    """Whether a file is larger than can be copied."""
    size = info.get("size")
    return isinstance(size, (int, float)) and size > LIMIT


def finder(goal: Goal) -> ToolCall:
    """The call that finds the file a goal describes."""
    return _call("find_text", path=goal["dir"], word=goal["word"])


def shown(seen: Seen, call: ToolCall) -> dict[str, JSON] | None:
    """The first response shown for this call; {} when it was not an object; None when there was none."""
    for made, content in seen:
        if made == call:
            return content if isinstance(content, dict) else {}
    return None


def _call(name: str, **arguments: JSON) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)
