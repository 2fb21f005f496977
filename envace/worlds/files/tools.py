"""The tools of the files world as data: what each is called, takes and changes.

Flows in: nothing. Flows out: JSON schemas, parameters by tool, the tools that change the tree.
Invariant: everything is read from the one list below.
"""

from __future__ import annotations

from collections.abc import Sequence

from envace.types import JSON

LIMIT = 50  # the largest file that can be read or copied


def _schema(name: str, description: str, parameters: Sequence[str]) -> dict[str, JSON]:
    properties = {p: {"type": "string"} for p in parameters}
    body = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": body}}


# name -> (what it does, parameters, whether it changes the tree)
_TOOLS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "list_dir": ("List a directory.", ("path",), False),
    "read_file": (f"Show the text of a file up to size {LIMIT}.", ("path",), False),
    "file_info": ("Size of a file, and whether it is locked.", ("path",), False),
    "find_text": ("Find the file in a directory that has a word.", ("path", "word"), False),
    "move_file": ("Move a file that is not locked.", ("path", "to"), True),
    "copy_file": (f"Copy a file up to size {LIMIT}.", ("path", "to"), True),
    "delete_file": ("Delete a file that is not locked.", ("path",), True),
    "make_dir": ("Make a directory.", ("path",), True),
}
SCHEMAS: dict[str, dict[str, JSON]] = {n: _schema(n, text, takes) for n, (text, takes, _) in _TOOLS.items()}
TAKES: dict[str, tuple[str, ...]] = {n: takes for n, (_, takes, _) in _TOOLS.items()}
WRITES: tuple[str, ...] = tuple(n for n, (_, _, writes) in _TOOLS.items() if writes)
