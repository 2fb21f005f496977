"""Staging: a source becomes train and held-out rows, a list of what was left out, and a manifest.

Flows in: parameters. Flows out, in one folder: `train.parquet`, `held.parquet`, where the source has them
`unseen.parquet` and `files.parquet`, `rejects.jsonl` (one object a left-out row: where, uuid, reason, field,
message) and `manifest.json`.
Invariant: read = kept + rejected; the manifest is written last, so a folder with one is complete; the same
rows and parameters give the same parquet bytes, in whatever order the rows come (unless `data.split` is first_n)
and however many processes work. Rows pass through a scratch file: memory holds ids, digests and offsets only.
"""

from __future__ import annotations

import heapq
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from envace.config import Params
from envace.data.check import ANNOTATE
from envace.data.faults import Reject
from envace.data.knobs import knobs
from envace.data.length import prompt_counter
from envace.data.manifest import Tally, manifest
from envace.data.pool import chunks, ordered, rare_collections
from envace.data.progress import Say
from envace.data.scratch import Scratch, scratch_in
from envace.data.settle import Entry, Gone, settle
from envace.data.sift import reject, sift
from envace.data.sources import Raw, open_source
from envace.data.split import SPLITS, deal
from envace.data.store import write_rows
from envace.errors import DataError, EnvironmentUnready
from envace.io.files import replacing, write_text

CHUNK = 64  # rows judged together
SCRAPS = ".staging-"  # how scratch folders begin
REJECTS = "rejects.jsonl"

Progress = Callable[[int], None]  # rows read so far


def stage(
    params: Params, out: Path, progress: Progress = lambda rows: None, workers: int | None = None, *,
    state: Path | None = None, say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """Stage `data.source` into `out` and return the manifest. `workers` overrides `data.workers`; downloads stay below
    `state`, and where nothing usable comes out, a copy of the rejects does.

    Raises DataError when nothing usable comes out, StageFailed when a worker process dies.
    """
    out, turned = Path(out), knobs(params)
    _withdraw(out)
    count, how = prompt_counter(params)
    with _scratch(out) as folder, scratch_in(Path(folder)) as scratch, rare_collections():
        with open_source(params, state, say) as origin:
            tally, sieve = Tally(), turned.sieve(count, origin.about["licence"])
            entries = _judge(
                origin.rows, partial(sift, sieve), scratch, tally, params, workers or turned.workers, progress
            )
        kept, gone = settle(entries, origin.distinct)
        _write_rejects(out, scratch, gone, tally)
        try:
            splits = deal(kept, origin.splits, params, turned.split, turned.held_rows)
        except DataError as e:
            raise DataError(f"{e}; {_why(out, state, tally)}") from None
        for name, rows in splits.items():
            write_rows(out / f"{name}.parquet", _counted(scratch.rows(rows), tally))
    tally.check()
    made = manifest(params, out, origin.about, tally, splits, how)
    write_text(out / "manifest.json", json.dumps(made, indent=2, sort_keys=True) + "\n")
    return made


def _withdraw(out: Path) -> None:
    """Take what an earlier staging left away, its manifest first: from here on the folder is not complete."""
    for path in (out / "manifest.json", *(out / f"{name}.parquet" for name in SPLITS)):
        try:
            path.unlink(missing_ok=True)
        except OSError as e:
            raise EnvironmentUnready(f"cannot write {path}: {e.strerror or e}") from e
    for path in out.glob(f"{SCRAPS}*"):  # of a staging that was killed
        shutil.rmtree(path, ignore_errors=True)


def _scratch(out: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=SCRAPS, dir=out)
    except OSError as e:
        raise EnvironmentUnready(f"cannot write {out}: {e.strerror or e}") from e


def _judge(
    rows: Iterable[Raw], work: Callable[..., Any], scratch: Scratch, tally: Tally, params: Params, workers: int,
    progress: Progress,
) -> list[Entry]:  # fmt: skip
    """Judge every row; rows and rejects go to the scratch, what is known of the rows stays."""
    entries: list[Entry] = []
    with closing(ordered(work, chunks(rows, CHUNK), workers, params.rollout.worlds)) as chunks_judged:
        for found in chunks_judged:
            entries += scratch.add(found, tally.read)
            tally.add(found)
            progress(tally.read)
    return entries


def _write_rejects(out: Path, scratch: Scratch, gone: list[Gone], tally: Tally) -> None:
    """All that is left out, in the order it was read."""
    gone.sort(key=lambda g: g.entry.ordinal)
    tally.hits.update(str(g.reason) for g in gone)
    late = (
        (g.entry.ordinal, reject(scratch.where(g.entry), {"uuid": g.entry.uuid}, g.fault(scratch.where)))
        for g in gone
    )
    with replacing(out / REJECTS) as part, part.open("w", encoding="utf-8") as f:
        for _, line in heapq.merge(scratch.rejects(), late, key=lambda line: line[0]):
            tally.reject(line)
            f.write(json.dumps(line, ensure_ascii=False) + "\n")


def _why(out: Path, state: Path | None, tally: Tally) -> str:
    """What was left out, and where it is listed: with `state`, a copy there, since the folder may not stay."""
    if not tally.rejected:
        return "none was left out"
    path = out / REJECTS
    if state is not None:
        path = state / "logs" / f"stage_data.{REJECTS}"
        with replacing(path) as part:
            shutil.copyfile(out / REJECTS, part)
    top = ", ".join(f"{n} {reason}" for reason, n in tally.reasons.most_common(3))
    raw = tally.reasons[str(Reject.NO_CHECKLIST)]
    more = f"; raw rows need checklists first, which `{ANNOTATE}` writes" if raw else ""
    return f"{tally.rejected} of {tally.read} rows were left out ({top}){more}; {path} says why"


def _counted(rows: Iterable[tuple[Any, Any]], tally: Tally) -> Iterator[Any]:
    for size, row in rows:
        tally.keep(size, row)
        yield row
