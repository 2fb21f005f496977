"""The files world: shell-like tools over a tree of files held in memory.

Flows in: tool calls of one episode. Flows out: observations, each the tool's true response or a refusal
`{"error": "<short sentence>"}`.
Invariant: a response depends on the tree and the calls made before, on nothing else, and no call reaches the
host's files; a refused call changes nothing; no argument, however odd, raises.

Tree: `{"dirs": ["docs"], "files": {"docs/kite.txt": {"text": "call lemon", "size": 12, "locked": false}}}`.
Paths are relative to the root, which is "."; a file larger than `LIMIT` can be neither read, searched nor
copied.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence

from envace.errors import DataError
from envace.types import JSON, Record, ToolCall
from envace.worlds.files.tools import LIMIT, TAKES, WRITES
from envace.worlds.registry import EmbeddedWorld, ToolRefusal

NAME = r"[a-z0-9_]+(?:\.[a-z0-9]+)?"
PATH = re.compile(rf"{NAME}(?:/{NAME})*")
LONGEST = 80  # characters of a path
ROOT = "."
FIELDS: dict[str, type] = {"text": str, "size": int, "locked": bool}

Row = dict[str, JSON]


class FilesWorld(EmbeddedWorld):
    """One episode's copy of the tree."""

    KIND = "files"

    def __init__(self, tree: Row):
        """`tree` is copied; raises DataError when it is not the mapping this module's docstring shows."""
        dirs, files = (tree.get("dirs"), tree.get("files")) if isinstance(tree, dict) else (None, None)
        if (
            not isinstance(dirs, list)
            or not isinstance(files, dict)
            or not all(map(_is_file, files.values()))
        ):
            raise DataError(f"a files world needs `dirs`, a list, and `files`, each with {', '.join(FIELDS)}")
        self.dirs: set[str] = set(dirs)
        self.files: dict[str, Row] = {k: dict(files[k]) for k in sorted(files)}
        for path in [*self.dirs, *self.files]:
            if not PATH.fullmatch(path) or parent(path) not in {ROOT, *self.dirs}:
                raise DataError(
                    f"a files world cannot hold {path!r}: a bad path, or its directory is missing"
                )

    @classmethod
    def from_records(cls, records: Sequence[Record]) -> FilesWorld:
        """The tree as the records show it: the earliest look-up of each path that no recorded call has
        made."""
        told = [(r.call.name, r.result) for r in records if isinstance(r.result, dict) and "path" in r.result]
        made = _made(told)
        dirs: set[str] = set()
        files: dict[str, Row] = {}
        for name, shown in told:
            path = str(shown["path"])
            if name == "list_dir":
                dirs |= {join(path, d) for d in _names(shown, "dirs")} - made
            elif name in ("read_file", "file_info") and path not in made:
                row = files.setdefault(path, {})
                for field in FIELDS.keys() & shown.keys():
                    row.setdefault(field, shown[field])
        blank = {"text": "", "size": 0, "locked": False}
        return cls({"dirs": sorted(dirs), "files": {path: {**blank, **row} for path, row in files.items()}})

    def answer(self, call: ToolCall) -> Row:
        if call.name not in TOOL:
            raise ToolRefusal("unknown tool")
        return TOOL[call.name](self, **_arguments(call))

    def state(self) -> Row:
        """The tree as it stands, a copy."""
        return {"dirs": sorted(self.dirs), "files": {k: copy.copy(self.files[k]) for k in sorted(self.files)}}

    # --- tools ------------------------------------------------------------------------------------

    def list_dir(self, path: str) -> Row:
        inside = self._dir(path)
        dirs = sorted(d.rpartition("/")[2] for d in self.dirs if parent(d) == inside)
        files = sorted(f.rpartition("/")[2] for f in self.files if parent(f) == inside)
        return {"path": inside, "dirs": dirs, "files": files, "count": len(files)}

    def read_file(self, path: str) -> Row:
        return {"path": path, "text": self._small(path)["text"]}

    def file_info(self, path: str) -> Row:
        file = self._file(path)
        return {"path": path, "size": file["size"], "locked": file["locked"]}

    def find_text(self, path: str, word: str) -> Row:
        inside = self._dir(path)
        under = [f for f in sorted(self.files) if inside == ROOT or f.startswith(inside + "/")]
        found = [f for f in under if self.files[f]["size"] <= LIMIT and word in self.files[f]["text"].split()]
        if not found:
            raise ToolRefusal("no match")
        return {"word": word, "file": found[0], "count": len(found)}

    def move_file(self, path: str, to: str) -> Row:
        file = self._unlocked(path)
        self._free(to)
        self.files[to] = file
        del self.files[path]
        return {"path": path, "to": to}

    def copy_file(self, path: str, to: str) -> Row:
        file = self._small(path)
        self._free(to)
        self.files[to] = {**file, "locked": False}
        return {"path": path, "to": to}

    def delete_file(self, path: str) -> Row:
        self._unlocked(path)
        del self.files[path]
        return {"path": path, "deleted": True}

    def make_dir(self, path: str) -> Row:
        self._free(path)
        self.dirs.add(path)
        return {"path": path, "made": True}

    # --- checks -----------------------------------------------------------------------------------

    def _dir(self, path: str) -> str:
        if path != ROOT and checked(path) not in self.dirs:
            raise ToolRefusal("is a file" if path in self.files else "no such directory")
        return path

    def _file(self, path: str) -> Row:
        if path == ROOT or checked(path) in self.dirs:
            raise ToolRefusal("is a directory")
        if path not in self.files:
            raise ToolRefusal("no such file")
        return self.files[path]

    def _small(self, path: str) -> Row:
        if self._file(path)["size"] > LIMIT:
            raise ToolRefusal("too large")
        return self.files[path]

    def _unlocked(self, path: str) -> Row:
        if self._file(path)["locked"]:
            raise ToolRefusal("read only")
        return self.files[path]

    def _free(self, path: str) -> None:
        """Whether something new may stand there."""
        if path == ROOT or checked(path) in self.dirs or path in self.files:
            raise ToolRefusal("exists already")
        if parent(path) not in {ROOT, *self.dirs}:
            raise ToolRefusal("no such directory")


def checked(path: str) -> str:
    """The path, or a ToolRefusal when it leaves the root or is none."""
    if path.startswith(("/", "\\", "~")) or ".." in re.split(r"[/\\]", path):
        raise ToolRefusal("outside the root")
    if not PATH.fullmatch(path) or len(path) > LONGEST:
        raise ToolRefusal("bad path")
    return path


def parent(path: str) -> str:
    """The directory a path stands in."""
    return path.rpartition("/")[0] or ROOT


def join(inside: str, name: str) -> str:
    """The path of a name in a directory."""
    return name if inside == ROOT else f"{inside}/{name}"


def _made(told: Sequence[tuple[str, Row]]) -> set[str]:
    """The paths that stand in the tree only because a recorded call put them there."""
    made: set[str] = set()
    gone: set[str] = set()
    for name, shown in (t for t in told if t[0] in WRITES):
        if name in ("move_file", "delete_file"):
            gone.add(str(shown["path"]))
        if (new := str(shown.get("to", shown["path"]))) not in gone:
            made.add(new)
    return made


def _is_file(row: JSON) -> bool:
    return (
        isinstance(row, dict)
        and set(row) == set(FIELDS)
        and all(type(row[k]) is t for k, t in FIELDS.items())
    )


def _names(told: Row, key: str) -> list[str]:
    names = told.get(key)
    return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []


def _arguments(call: ToolCall) -> dict[str, str]:
    given, wanted = call.arguments, TAKES[call.name]
    if (
        not isinstance(given, dict)
        or set(given) != set(wanted)
        or not all(type(v) is str for v in given.values())
    ):
        raise ToolRefusal("bad arguments")
    return given


TOOL: dict[str, Callable[..., Row]] = {name: getattr(FilesWorld, name) for name in TAKES}
