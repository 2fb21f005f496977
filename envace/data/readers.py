"""Rows of a file by its ending: .jsonl, .json (a list of rows, or a row a line), .parquet.

Flows in: a path. Flows out: `RawRow`s, each with the place it was read at. Invariant: every row comes out,
readable or not, and where a list cannot be read on, its last fault says so; a block of the file and one row
are in memory, whatever the file's size."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envace.data import jsontext
from envace.data.faults import Fault, Reject
from envace.data.store import count_rows, iter_rows
from envace.errors import DataError
from envace.types import JSON

BLOCK = 1 << 20  # bytes read at a time
LONGEST = 64 << 20  # bytes of one row
BOM = b"\xef\xbb\xbf"
TOO_LONG = f"is longer than {LONGEST >> 20} MiB"
# No possessive quantifiers: Python 3.11 before 3.11.5 gets nested ones wrong. Unrolled, a string that does
# not end
# costs one look at each of its bytes.
STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
# Up to the next mark that counts, or to a string that the end of the block cuts off.
TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]+|' + STRING + rb")*", re.S)
TO_COMMA = re.compile(rb'(?:[^"\[\]{},]+|' + STRING + rb")*", re.S)


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as read: `RawRow("a.jsonl:3", {...})`, or what kept it from being read."""

    where: str
    """File and line (from 1) or row (from 0)."""
    row: JSON
    fault: Fault | None = None
    split: str = ""
    """train | held | ... where the source decides it."""
    read: float = 0.0
    """Share of its file that is read by now."""


def _parquet(path: Path, name: str) -> Iterator[RawRow]:
    rows = max(count_rows(path), 1)
    for k, row in enumerate(iter_rows(path)):
        yield RawRow(f"{name}:{k}", row, read=(k + 1) / rows)


def _jsonl(path: Path, name: str) -> Iterator[RawRow]:
    with _opened(path) as f:
        size = _size(f)
        for k, line in enumerate(iter(lambda: f.readline(LONGEST + 1), b""), 1):
            where = f"{name}:{k}"
            if len(line) > LONGEST:
                while line and not line.endswith(b"\n"):
                    line = f.readline(BLOCK)
                yield _unread(where, TOO_LONG, f.tell() / size)
            elif line.strip():
                yield _parsed(line.removeprefix(BOM) if k == 1 else line, where, f.tell() / size)


def _json(path: Path, name: str) -> Iterator[RawRow]:
    """A list of rows; a file that begins otherwise is read a row a line where its first line is a row."""
    with _opened(path) as f:
        text = f.read(BLOCK).removeprefix(BOM).lstrip()
        f.seek(f.tell() - len(text))
        if text.startswith(b"["):
            f.seek(1, 1)
            size = _size(f)
            for k, (row, why_not) in enumerate(_elements(f)):
                read = f.tell() / size
                yield _unread(f"{name}:{k}", why_not, read) if why_not else _parsed(row, f"{name}:{k}", read)
            return
        fault = _parsed(f.readline(LONGEST), name).fault if text else None
    if fault:
        yield _unread(name, f"is neither a list of rows nor a row a line ({fault.message})")
    else:
        yield from _jsonl(path, name)


def _elements(f: BinaryIO) -> Iterator[tuple[bytes, str]]:
    """The texts between the commas of a list that was just opened, found by brackets and strings alone.

    Or what is wrong in place of one: a row that does not parse does not hide the rows behind it.
    """
    text, start, at, depth, rows = b"", 0, 0, 0, 0
    while True:
        at = (TO_BRACKET if depth else TO_COMMA).match(text, at).end()
        mark = text[at : at + 1]
        if mark in (b"", b'"'):  # the rest has yet to be read
            text, start, at = text[start:], 0, at - start
            block = f.read(BLOCK) if len(text) <= LONGEST else b""
            if not block:
                cut = f"{TOO_LONG}; what follows is not read", "the list is not closed: the file is cut short"
                yield b"", cut[len(text) <= LONGEST]
                return
            text += block
            continue
        at += 1
        if depth or mark in b"[{":
            depth += 1 if mark in b"[{" else -1
        elif mark in b",]":
            row, start, rows = text[start : at - 1], at, rows + 1
            if mark == b"," or rows > 1 or row.strip():
                yield row, ""
            if mark == b"]":
                if (text[at:] + f.read(BLOCK)).strip():
                    yield b"", "text follows the end of the list"
                return


def _parsed(text: bytes, where: str, read: float = 1.0) -> RawRow:
    try:
        row = jsontext.read_line(text)
    except ValueError as e:
        return _unread(where, f"is not JSON: {e}", read)
    if not isinstance(row, dict):
        return _unread(where, "is not a JSON object", read)
    return RawRow(where, row, read=read)


def _unread(where: str, message: str, read: float = 1.0) -> RawRow:
    return RawRow(where, None, Fault(Reject.BAD_JSON, "row", message), read=read)


def _size(f: BinaryIO) -> int:
    return max(os.fstat(f.fileno()).st_size, 1)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as f:
            yield f
    except OSError as e:
        raise DataError(f"{path} cannot be read: {e.strerror or e}") from e


READERS: dict[str, Callable[[Path, str], Iterator[RawRow]]] = {
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".json": _json,
}
