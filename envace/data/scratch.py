"""Rows between judging and writing: on disk, found by offset.

Flows in: records, in the order of the source. Flows out: the records asked for, in any order.
Invariant: nothing of a row stays in memory; the files go with the folder they are in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from envace.data.forms import Row
from envace.data.settle import Entry
from envace.data.sift import Sifted
from envace.data.sizes import Size
from envace.errors import EnvironmentUnready

_place = msgspec.json.Decoder(str).decode
_size = msgspec.json.Decoder(Size).decode
_row = msgspec.json.Decoder().decode
_reject = msgspec.json.Decoder(tuple[int, Row]).decode


class Scratch:
    """Rows without faults, three lines each (place, size, row), and the lines of those with."""

    def __init__(self, rows: BinaryIO, rejects: BinaryIO):
        self._rows, self._rejects = rows, rejects
        self._end = 0

    def add(self, found: Sifted, first: int) -> list[Entry]:
        """Put a chunk away whose first row has the ordinal `first`; return its entries, with their places.

        Raises EnvironmentUnready when the disk is full.
        """
        for entry, record in found.kept:
            entry.ordinal += first
            entry.offset = self._end
            self._end += len(record)
        lines = [msgspec.json.encode((first + k, line)) + b"\n" for k, line in found.rejects]
        try:
            self._rows.writelines(record for _, record in found.kept)
            self._rejects.writelines(lines)
        except OSError as e:
            raise _unwritable(self._rows.name, e) from e
        return [entry for entry, _ in found.kept]

    def rows(self, entries: Sequence[Entry]) -> Iterator[tuple[Size, Row]]:
        """The rows of these entries, in their order, one at a time."""
        for entry in entries:
            _, size, row = self._lines(entry, 3)
            yield _size(size), _row(row)

    def where(self, entry: Entry) -> str:
        """The place at which a row was read."""
        [place] = self._lines(entry, 1)
        return _place(place)

    def _lines(self, entry: Entry, n: int) -> list[bytes]:
        self._rows.seek(entry.offset)
        return [self._rows.readline() for _ in range(n)]

    def rejects(self) -> Iterator[tuple[int, Row]]:
        """Every line with its row's ordinal, in order."""
        self._rejects.seek(0)
        return map(_reject, self._rejects)


@contextmanager
def scratch_in(folder: Path) -> Iterator[Scratch]:
    """A scratch in an existing folder. Raises EnvironmentUnready when it cannot be written."""
    try:
        rows, rejects = open(folder / "rows", "w+b"), open(folder / "rejects", "w+b")
    except OSError as e:
        raise _unwritable(folder, e) from e
    with rows, rejects:
        yield Scratch(rows, rejects)


def _unwritable(path: Path | str, e: OSError) -> EnvironmentUnready:
    return EnvironmentUnready(f"cannot write {path}: {e.strerror or e}")
