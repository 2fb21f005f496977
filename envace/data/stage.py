"""Staging: a source becomes train and held-out rows, a list of what was left out, and a manifest.

Flows in: parameters. Flows out, in one folder: `train.parquet`, `held.parquet`, where the source has them
`validation.parquet`, `unseen.parquet` and `files.parquet`, `rejects.jsonl` (one object a left-out row:
where, uuid, reason, field, message) and `manifest.json`. Invariant: read = kept + rejected; the manifest is
written last, so a folder with one is complete; the same rows and parameters give the same
parquet bytes, in whatever order the rows come (unless `data.split` is first_n) and however many processes
work. Rows pass through a scratch file: memory holds the ids of those kept."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from envace.config import Params
from envace.data.check import ANNOTATE
from envace.data.faults import Reject
from envace.data.judged_rows import JudgedRows, judged_rows
from envace.data.manifest import StagingTally, manifest
from envace.data.pool import chunks, ordered
from envace.data.progress import Say
from envace.data.prompt_length import Estimate, prompt_counter
from envace.data.row_forms import Row
from envace.data.sizes import RowSize
from envace.data.sources import open_source
from envace.data.split import SPLITS, deal
from envace.data.store import write_rows
from envace.data.verdicts import RowLimits, cores, judge_chunk
from envace.errors import DataError
from envace.io.files import replacing, unwritable, write_text
from envace.types import JSON

CHUNK = 64  # rows judged together
SCRAPS = ".staging-"  # how scratch folders begin
REJECTS = "rejects.jsonl"


def stage(
    params: Params,
    out: Path,
    progress: Callable[[int], None] = lambda rows: None,
    workers: int | None = None,
    *,
    state: Path | None = None,
    say: Say = print,
) -> dict[str, JSON]:
    """Stage `data.source` into `out` and return the manifest.

    `progress` hears how many rows are read, `workers` overrides `data.workers`; downloads stay below `state`,
    and where nothing usable comes out, a copy of the rejects does. Raises DataError when nothing usable comes
    out, StageFailed when a worker process dies."""
    out = Path(out)
    RowLimits.of(params, Estimate())  # what cannot be used is told before anything is taken away
    _withdraw(out)
    count, how = prompt_counter(params)
    tally = StagingTally()
    with unwritable(out):
        out.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=SCRAPS, dir=out)
    with folder, judged_rows(Path(folder.name) / "rows") as rows:
        with open_source(params, state, say) as source:
            work = partial(judge_chunk, RowLimits.of(params, count, source.about["licence"]))
            parts, n = chunks(source.rows, CHUNK), workers or params.data.workers or cores()
            with closing(ordered(work, parts, n, params.rollout.worlds)) as judged:
                for found in judged:
                    rows.add(found.rows)
                    tally.add(found)
                    progress(tally.read)
        rows.settle(source.distinct)
        _write_rejects(out, rows, tally)
        try:
            splits = deal(rows.kept(), source.splits, params)
        except DataError as e:
            raise DataError(f"{e}; {_why(out, state, tally)}") from None
        for name, entries in splits.items():
            write_rows(out / f"{name}.parquet", _counted(rows.rows(entries), tally))
    made = manifest(params, out, source.about, tally, splits, how)
    write_text(out / "manifest.json", json.dumps(made, indent=2, sort_keys=True) + "\n")
    return made


def _withdraw(out: Path) -> None:
    """Take what an earlier staging left away, its manifest first: from here on the folder is not complete."""
    for path in (out / "manifest.json", *(out / f"{name}.parquet" for name in SPLITS)):
        with unwritable(path):
            path.unlink(missing_ok=True)
    for path in out.glob(f"{SCRAPS}*"):  # of a staging that was killed
        shutil.rmtree(path, ignore_errors=True)


def _write_rejects(out: Path, rows: JudgedRows, tally: StagingTally) -> None:
    """All that is left out, in the order it was read."""
    with replacing(out / REJECTS) as part, part.open("w", encoding="utf-8") as f:
        for line in rows.rejects():
            tally.reject(line)
            f.write(json.dumps(line, ensure_ascii=False) + "\n")


def _why(out: Path, state: Path | None, tally: StagingTally) -> str:
    """What was left out, and where it is listed: with `state`, a copy there, since the folder may not
    stay."""
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


def _counted(rows: Iterable[tuple[RowSize, Row]], tally: StagingTally) -> Iterator[Row]:
    for size, row in rows:
        tally.keep(size, row)
        yield row
