"""Which file a row goes to, and in which order.

Flows in: the entries of all kept rows. Flows out: entries by split.
Invariant: by hash, a row's side depends on seed and id only, and so does the order; neither input order nor other
rows matter, but for a source so small that a side would stay empty. A source that deals its rows itself is
followed, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from envace.config import Params
from envace.data.select import share_of
from envace.errors import DataError

SPLITS = ("train", "held", "unseen", "files")  # every file a staged folder may hold


class Dealt(Protocol):
    """What is known of a row when it is dealt."""

    uuid: str
    split: str  # named by the source, or ""
    ordinal: int  # its place in the source


E = TypeVar("E", bound=Dealt)


def deal(
    rows: Sequence[E], named: tuple[str, ...], params: Params, how: str, held: int
) -> dict[str, list[E]]:
    """Rows by split: as the source names them, else by `how`: hash, or first_n (of the first `held` read, those kept).

    Raises DataError when a split would be empty.
    """
    wanted = f"data.source {params.data.source!r}"
    if not named and len(rows) < 2:
        raise DataError(f"{len(rows)} usable row(s) came out of {wanted}, at least 2 are needed")
    rows = sorted(rows, key=lambda r: r.ordinal)
    splits = _named(rows, named) if named else WAYS[how](rows, params, held)
    if empty := [name for name, dealt in splits.items() if not dealt]:
        raise DataError(f"no usable row came out of {wanted} for the split {empty[0]}")
    return splits


def _named(rows: list[E], named: tuple[str, ...]) -> dict[str, list[E]]:
    splits: dict[str, list[E]] = {name: [] for name in named}
    for row in rows:
        splits[row.split].append(row)
    return splits


def by_hash(rows: list[E], params: Params, held: int) -> dict[str, list[E]]:
    """The rows of the smallest numbers are held out; at least one row on each side."""
    ranked = sorted((share_of(f"{params.seed}/{row.uuid}"), row.uuid, k) for k, row in enumerate(rows))
    n = sum(share < params.data.held_share for share, _, _ in ranked)
    n = min(max(n, 1), len(rows) - 1)
    ordered = [rows[k] for _, _, k in ranked]
    return {"train": ordered[n:], "held": ordered[:n]}


def first_n(rows: list[E], params: Params, held: int) -> dict[str, list[E]]:
    """The first rows of the source are held out, faulty ones counted, as the published data set does.

    Raises DataError when all are.
    """
    train = [r for r in rows if r.ordinal >= held]
    if not train:
        raise DataError(
            f"data.held_rows is {held}, but all {len(rows)} usable rows are among the first {held}: lower it, or set "
            "data.split to hash"
        )
    return {"train": train, "held": [r for r in rows if r.ordinal < held]}


WAYS: dict[str, Callable[..., dict[str, list[E]]]] = {"hash": by_hash, "first_n": first_n}
