"""Which of several equal rows stays.

Flows in: an entry for every row without faults. Flows out: the entries kept, and for each other one why not.
Invariant: which rows stay does not depend on their order. Of rows with one id, the one with the smallest digest
stays (of identical rows the first); of rows with one dialogue and tools, the one with the smallest id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from envace.data.faults import Fault, Reject


@dataclass(slots=True)
class Entry:
    """What stays in memory of a row without faults; the row itself is in the scratch file."""

    ordinal: int  # place in the source
    uuid: str
    split: str  # named by the source, or ""
    dropped: bool  # `data.select` leaves it out
    digest: bytes = b""  # of the whole stored row
    content: bytes = b""  # of its dialogue and tools
    offset: int = 0  # in the scratch file


class Gone(NamedTuple):
    """A row that is left out for the sake of another, or by choice."""

    entry: Entry
    reason: Reject
    kept: Entry | None = None  # which is the same row in some way

    def fault(self, where: Callable[[Entry], str]) -> Fault:
        """In words; `where` says at which place a row was read."""
        if self.kept is None:
            return Fault(self.reason, "row", "is left out by data.select")
        if self.reason is Reject.DUPLICATE_ID:
            words = f"{self.entry.uuid!r} is also the id of {where(self.kept)}, which is kept"
            return Fault(self.reason, "uuid", words)
        words = f"has the dialogue and tools of {self.kept.uuid!r} ({where(self.kept)})"
        return Fault(self.reason, "row", words)


def settle(entries: Iterable[Entry], distinct: bool = False) -> tuple[list[Entry], list[Gone]]:
    """Entries that stay, and those that go with the reason. `distinct`: the source vouches that dialogues differ."""
    unique, gone = _one_an_id(entries)
    if not distinct:
        unique, more = _one_a_content(unique)
        gone += more
    dropped = [Gone(e, Reject.NOT_SELECTED) for e in unique if e.dropped]
    return [e for e in unique if not e.dropped], [*gone, *dropped]


def _one_an_id(entries: Iterable[Entry]) -> tuple[list[Entry], list[Gone]]:
    best: dict[str, Entry] = {}
    lost: list[Entry] = []
    for entry in entries:
        other = best.setdefault(entry.uuid, entry)
        if other is entry:
            continue
        if (entry.digest, entry.ordinal) < (other.digest, other.ordinal):
            best[entry.uuid], entry = entry, other
        lost.append(entry)
    return list(best.values()), [Gone(e, Reject.DUPLICATE_ID, best[e.uuid]) for e in lost]


def _one_a_content(entries: list[Entry]) -> tuple[list[Entry], list[Gone]]:
    best: dict[bytes, Entry] = {}
    for entry in entries:
        if entry.uuid <= best.setdefault(entry.content, entry).uuid:
            best[entry.content] = entry
    stay = [e for e in entries if best[e.content] is e]
    return stay, [Gone(e, Reject.DUPLICATE_CONTENT, b) for e in entries if (b := best[e.content]) is not e]
