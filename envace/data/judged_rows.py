"""Rows between judging and writing, in an SQLite file: which of several equal ones stays, and every line of
rejects.

Flows in: verdicts, in the order of the source. Flows out: what is kept, in any order, and what is not, in
order. Invariant: no row stays in memory; the file goes with the folder it is in. Which rows stay does not
depend on their order: of rows with one id, the one with the smallest digest stays (of identical rows the
first); of rows with one dialogue and tools, the one with the smallest id."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from envace.data.faults import Reject
from envace.data.row_forms import Row
from envace.data.sizes import RowSize
from envace.data.verdicts import RowVerdict, reject_line
from envace.errors import EnvironmentUnready

LINE = ("place", "uuid", "reason", "field", "message")
"""Columns of a line of rejects."""
TABLE = """
CREATE TABLE rows (
    ordinal INTEGER PRIMARY KEY,  -- place in the source
    place TEXT, uuid TEXT, reason TEXT, field TEXT, message TEXT,
    split TEXT, dropped INTEGER, digest BLOB, content BLOB, size BLOB, row BLOB
)"""
EQUALS = """
WITH ranked AS (
    SELECT ordinal, {key} AS key, uuid, place, row_number() OVER (PARTITION BY {key} ORDER BY {best}) AS rank
    FROM rows WHERE reason IS NULL
)
SELECT lost.ordinal, lost.uuid, best.uuid, best.place FROM ranked AS lost
JOIN ranked AS best ON best.key = lost.key AND best.rank = 1 WHERE lost.rank > 1
"""


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """What is known of a row when it is dealt to a split."""

    ordinal: int
    uuid: str
    split: str
    """Named by the source, or empty."""


class JudgedRows:
    """Every row that was read."""

    def __init__(self, db: sqlite3.Connection):
        self._db, self._n = db, 0

    def add(self, verdicts: Iterable[RowVerdict]) -> None:
        """Put rows away, the next ones of the source. Raises EnvironmentUnready when the disk is full."""
        values = []
        for v in verdicts:
            line, k = reject_line(v.where, v.uuid, v.faults[0]) if v.faults else {}, v.kept
            kept = (k.split, k.dropped, k.digest, k.content, k.size, k.row) if k else (None,) * 6
            values.append((self._n, v.where, v.uuid, *map(line.get, LINE[2:]), *kept))
            self._n += 1
        self._db.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * 12)})", values)

    def settle(self, distinct: bool = False) -> None:
        """Leave out rows that equal another, then what data.select drops.

        `distinct`: the source vouches that dialogues differ.
        """
        equal = self._db.execute(EQUALS.format(key="uuid", best="digest, ordinal")).fetchall()
        told = [(n, f"{uuid!r} is also the id of {place}, which is kept") for n, uuid, _, place in equal]
        self._leave_out(Reject.DUPLICATE_ID, "uuid", told)
        if not distinct:
            equal = self._db.execute(EQUALS.format(key="content", best="uuid")).fetchall()
            told = [(n, f"has the dialogue and tools of {uuid!r} ({place})") for n, _, uuid, place in equal]
            self._leave_out(Reject.DUPLICATE_CONTENT, "row", told)
        dropped = self._db.execute("SELECT ordinal FROM rows WHERE reason IS NULL AND dropped").fetchall()
        self._leave_out(Reject.NOT_SELECTED, "row", [(n, "is left out by data.select") for (n,) in dropped])

    def _leave_out(self, reason: Reject, field: str, told: list[tuple[int, str]]) -> None:
        self._db.executemany(
            "UPDATE rows SET reason = ?, field = ?, message = ? WHERE ordinal = ?",
            [(str(reason), field, words, ordinal) for ordinal, words in told],
        )

    def rejects(self) -> Iterator[Row]:
        """The line of every row that is left out, in the order they were read."""
        chosen = f"SELECT {', '.join(LINE)} FROM rows WHERE reason IS NOT NULL ORDER BY ordinal"
        return (dict(zip(("where", *LINE[1:]), line)) for line in self._db.execute(chosen))

    def kept(self) -> list[KeptEntry]:
        """The rows that stay, in the order they were read."""
        rows = self._db.execute("SELECT ordinal, uuid, split FROM rows WHERE reason IS NULL ORDER BY ordinal")
        return [KeptEntry(*row) for row in rows]

    def rows(self, entries: Sequence[KeptEntry]) -> Iterator[tuple[RowSize, Row]]:
        """These rows, in their order, one at a time."""
        for entry in entries:
            chosen = "SELECT size, row FROM rows WHERE ordinal = ?"
            size, row = self._db.execute(chosen, (entry.ordinal,)).fetchone()
            yield msgspec.json.decode(size, type=RowSize), msgspec.json.decode(row)


@contextmanager
def judged_rows(path: Path | str) -> Iterator[JudgedRows]:
    """A new table at `path`, or in memory (`:memory:`). Raises EnvironmentUnready when it cannot be
    written."""
    try:
        db = sqlite3.connect(path, isolation_level=None)
        try:
            db.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {TABLE}")
            yield JudgedRows(db)
        finally:
            db.close()
    except sqlite3.OperationalError as e:
        raise EnvironmentUnready(f"cannot write {path}: {e}") from e
