"""Which split a row goes to, and in which order.

Flows in: all kept rows. Flows out: rows by split. Invariant: by hash, a row's side depends on seed and id
only, and so does the order; neither input order nor other rows matter, but for a source so small that a side
would stay empty. A source that deals its rows itself is followed, in its order."""

from __future__ import annotations

from envace.config import Params
from envace.data.judged_rows import KeptEntry
from envace.data.select import share_of
from envace.errors import DataError

SPLITS = ("train", "held", "validation", "unseen", "files")  # every file a staged folder may hold


def deal(rows: list[KeptEntry], named: tuple[str, ...], params: Params) -> dict[str, list[KeptEntry]]:
    """Rows, in the order they were read, by split: as the source names them, else as `data.split` says.

    Raises DataError when a split would be empty.
    """
    wanted = f"data.source {params.data.source!r}"
    if named:
        splits = {name: [row for row in rows if row.split == name] for name in named}
    elif len(rows) < 2:
        raise DataError(f"{len(rows)} usable row(s) came out of {wanted}, at least 2 are needed")
    else:
        splits = by_hash(rows, params) if params.data.split == "hash" else first_n(rows, params)
    if empty := [name for name, dealt in splits.items() if not dealt]:
        raise DataError(f"no usable row came out of {wanted} for the split {empty[0]}")
    return splits


def by_hash(rows: list[KeptEntry], params: Params) -> dict[str, list[KeptEntry]]:
    """The rows of the smallest numbers are held out; at least one row on each side."""
    ranked = sorted((share_of(f"{params.seed}/{row.uuid}"), row.uuid, k) for k, row in enumerate(rows))
    n = sum(share < params.data.held_share for share, _, _ in ranked)
    n = min(max(n, 1), len(rows) - 1)
    ordered = [rows[k] for _, _, k in ranked]
    return {"train": ordered[n:], "held": ordered[:n]}


def first_n(rows: list[KeptEntry], params: Params) -> dict[str, list[KeptEntry]]:
    """The first rows of the source are held out, faulty ones counted, as the published data set does.

    Raises DataError when all are.
    """
    held = params.data.held_rows
    train = [r for r in rows if r.ordinal >= held]
    if not train:
        raise DataError(
            f"data.held_rows is {held}, but all {len(rows)} usable rows are among the first {held}: lower "
            "it, or set data.split to hash"
        )
    return {"train": train, "held": [r for r in rows if r.ordinal < held]}
