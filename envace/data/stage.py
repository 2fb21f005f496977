"""Staging: a source becomes train and held-out rows, a list of what was left out, and a manifest.

Flows in: parameters. Flows out, in one folder: `train.parquet`, `held.parquet`, where the source has them
`unseen.parquet` and `files.parquet`, `rejects.jsonl` (one object a left-out row: where, uuid, reason, field,
message) and `manifest.json`.
Invariant: read = kept + rejected; the manifest is written last, so a folder with one is complete; the same
source and parameters give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envace.data.atomic import sha256, write_text
from envace.data.check import Fault, Reject, check_row
from envace.data.length import prompt_counter
from envace.data.schema import Row, row_from_task, task_from_row
from envace.data.sources import Raw, open_source
from envace.data.store import write_rows
from envace.errors import DataError, EnvironmentUnready
from envace.params import Params, to_dict

FORMAT = 1  # of the manifest
SPLITS = ("train", "held", "unseen", "files")  # every file a staged folder may hold


@dataclass
class Sorted:
    """Rows as they are dealt out."""

    kept: list[tuple[str, Row]] = field(default_factory=list)  # split named by the source or "", row
    rejects: list[dict[str, Any]] = field(default_factory=list)
    read: int = 0


def stage(params: Params, out: Path) -> dict[str, Any]:
    """Stage `data.source` into `out` and return the manifest. Raises DataError when nothing usable comes out."""
    out = Path(out)
    _withdraw(out)
    count, how = prompt_counter(params)
    with open_source(params) as origin:
        dealt = _sort(origin.rows, count, params.data.max_first_prompt_tokens)
    splits = _split(dealt.kept, origin.splits, params)
    for name, rows in splits.items():
        write_rows(out / f"{name}.parquet", rows)
    write_text(
        out / "rejects.jsonl", "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in dealt.rejects)
    )
    manifest = _manifest(params, out, origin.about, dealt, splits, how)
    write_text(out / "manifest.json", json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return manifest


def _withdraw(out: Path) -> None:
    """Take what an earlier staging left away, its manifest first: from here on the folder is not complete."""
    for path in (out / "manifest.json", *(out / f"{name}.parquet" for name in SPLITS)):
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            raise EnvironmentUnready(f"cannot write {path}: {e.strerror or e}") from e


def _sort(rows: Any, count: Callable[[Row], int], limit: int) -> Sorted:
    dealt, ids = Sorted(), set()
    for raw in rows:
        dealt.read += 1
        fault = _first_fault(raw, ids, count, limit)
        if fault:
            dealt.rejects.append(_reject(raw, fault))
        else:
            ids.add(raw.row["uuid"])
            dealt.kept.append(
                (raw.split, row_from_task(task_from_row(raw.row)))
            )  # one form, whatever the source's
    if dealt.read != len(dealt.kept) + len(dealt.rejects):
        raise AssertionError(f"{dealt.read} rows read, {len(dealt.kept)} kept, {len(dealt.rejects)} rejected")
    return dealt


def _reject(raw: Raw, fault: Fault) -> dict[str, Any]:
    uuid = raw.row.get("uuid") if isinstance(raw.row, dict) else None
    return {
        "where": raw.where,
        "uuid": _storable(uuid) if isinstance(uuid, str) else None,
        "reason": str(fault.reason),
        "field": _storable(fault.field),
        "message": _storable(fault.message),
    }


def _storable(text: str) -> str:
    """Text with what UTF-8 cannot hold replaced."""
    return text.encode("utf-8", "replace").decode()


def _first_fault(raw: Raw, ids: set[str], count: Callable[[Row], int], limit: int) -> Fault | None:
    if raw.fault:
        return raw.fault
    faults = check_row(raw.row)
    if faults:
        return faults[0]
    if raw.row["uuid"] in ids:
        return Fault(Reject.DUPLICATE_ID, "uuid", f"{raw.row['uuid']!r} was read before")
    tokens = count(raw.row)
    if tokens > limit:
        return Fault(
            Reject.PROMPT_TOO_LONG,
            "messages",
            f"the first prompt has {tokens} tokens, more than data.max_first_prompt_tokens ({limit})",
        )
    return None


def _split(kept: list[tuple[str, Row]], named: tuple[str, ...], params: Params) -> dict[str, list[Row]]:
    """Rows by split: as the source names them, else train and held out by a hash of seed and id."""
    splits: dict[str, list[Row]] = {name: [] for name in named or ("train", "held")}
    if not named and len(kept) < 2:
        raise DataError(
            f"{len(kept)} usable row(s) came out of data.source {params.data.source!r}, at least 2 are needed; rejects.jsonl says why"
        )
    for split, row in kept:
        share = _place(params.seed, row["uuid"])
        splits[split or ("held" if share < params.data.held_share else "train")].append(row)
    if not named:
        _fill(splits, params.seed)
    if empty := [name for name, rows in splits.items() if not rows]:
        raise DataError(
            f"no usable row came out of data.source {params.data.source!r} for the split {empty[0]}; rejects.jsonl says why"
        )
    return splits


def _fill(splits: dict[str, list[Row]], seed: int) -> None:
    """A small source: each side gets at least the row nearest to it."""
    for name, other in (("train", "held"), ("held", "train")):
        if not splits[name]:
            rank = sorted(splits[other], key=lambda r: _place(seed, r["uuid"]))
            moved = rank[0] if name == "held" else rank[-1]
            splits[other].remove(moved)
            splits[name].append(moved)


def _place(seed: int, uuid: str) -> float:
    """A number in [0, 1) that depends on seed and id only."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{uuid}".encode()).digest()[:6], "big") / 2**48


def _manifest(
    params: Params, out: Path, about: dict[str, Any], dealt: Sorted, splits: dict[str, list[Row]], how: str
) -> dict[str, Any]:
    reasons = Counter(r["reason"] for r in dealt.rejects)
    tags = Counter(t for _, row in dealt.kept for t in row["extra_info"].get("tags") or [])
    files = {f"{n}.parquet": len(rows) for n, rows in splits.items()} | {"rejects.jsonl": len(dealt.rejects)}
    return {
        "format": FORMAT,
        "source": about,
        "params": {"seed": params.seed, "data": to_dict(params.data), "desk": to_dict(params.desk)},
        "prompt_length": how,
        "counts": {
            "read": dealt.read, "kept": len(dealt.kept), "rejected": len(dealt.rejects),
            **{name: len(rows) for name, rows in splits.items()},
            "rejected_by_reason": dict(sorted(reasons.items())), "tags": dict(sorted(tags.items())),
        },
        "outputs": {name: {"rows": n, "bytes": (out / name).stat().st_size, "sha256": sha256(out / name)} for name, n in files.items()},
    }  # fmt: skip
