"""Which of several equal rows stays.

Flows in: an entry for every row without faults. Flows out: the entries kept, and for each other one why not.
Invariant: which rows stay does not depend on their order. Of rows with one id, the one with the smallest digest
stays (of identical rows the first); of rows with one dialogue and tools, the one with the smallest id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envace.data.faults import Fault, Reject


@dataclass(slots=True)
class Entry:
    """What stays in memory of a row without faults; the row itself is in the scratch file."""

    ordinal: int  # place in the source
    where: str
    uuid: str
    split: str  # named by the source, or ""
    dropped: bool  # `data.select` leaves it out
    digest: bytes = b""  # of the whole stored row
    content: bytes = b""  # of its dialogue and tools
    offset: int = 0  # in the scratch file
    length: int = 0


Reasons = list[tuple[Entry, Fault]]


def settle(entries: Iterable[Entry]) -> tuple[list[Entry], Reasons]:
    """Entries that stay, and those that go with the reason."""
    unique, gone = _one_an_id(entries)
    distinct, more = _one_a_content(unique)
    kept = [e for e in distinct if not e.dropped]
    drop = Fault(Reject.NOT_SELECTED, "row", "is left out by data.select")
    return kept, [*gone, *more, *((e, drop) for e in distinct if e.dropped)]


def _one_an_id(entries: Iterable[Entry]) -> tuple[list[Entry], Reasons]:
    best: dict[str, Entry] = {}
    lost: list[Entry] = []
    for entry in entries:
        other = best.setdefault(entry.uuid, entry)
        if other is entry:
            continue
        if (entry.digest, entry.ordinal) < (other.digest, other.ordinal):
            best[entry.uuid], entry = entry, other
        lost.append(entry)
    words = "{uuid!r} is also the id of {where}, which is kept"
    return list(best.values()), [
        (e, Fault(Reject.DUPLICATE_ID, "uuid", words.format(uuid=e.uuid, where=best[e.uuid].where)))
        for e in lost
    ]


def _one_a_content(entries: list[Entry]) -> tuple[list[Entry], Reasons]:
    """A source that deals its rows to splits itself vouches for them."""
    best: dict[bytes, Entry] = {}
    for entry in entries:
        if not entry.split and entry.uuid <= best.setdefault(entry.content, entry).uuid:
            best[entry.content] = entry
    stay = [e for e in entries if e.split or best[e.content] is e]
    return stay, [
        (e, Fault(Reject.DUPLICATE_CONTENT, "row", f"has the dialogue and tools of {b.uuid!r} ({b.where})"))
        for e in entries
        if not e.split and (b := best[e.content]) is not e
    ]
