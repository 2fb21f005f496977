"""The source's files as an output of staging, so that a DVC remote keeps them and a clone can stage anew
without it.

Flows in: the download folders below `.state/`. Flows out: `data/raw/`: `source.json`, and of a hub or S3
source the files. Of a local source `source.json` alone names the files: they are the user's own. Invariant:
`data/raw/` holds a complete, verified download or the bare name of a source; no file is stored twice, since
files are linked from one place to the other (copied only where the disk cannot link, as across file systems).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from envace.config import Params
from envace.data.fetch import place
from envace.data.progress import Say
from envace.data.source_files import SourceRecord, Wanted
from envace.io.files import publish, unwritable, write_text

FETCHED = ("hub", "s3")
ABOUT = "source.json"
DESK = json.dumps({"kind": "desk"}) + "\n"


def adopt_raw(raw: Path, state: Path, say: Say) -> None:
    """Let `raw` stand in for a download of its source that is not below `state`, whichever source is staged
    now.

    A download that has begun to fetch what changed since stays. Raises DataError when `raw` is damaged.
    """
    try:
        said = json.loads((raw / ABOUT).read_text(encoding="utf-8"))
        patterns = tuple(said["patterns"])
        key = Wanted(said["kind"], said["uri"], said["revision"], patterns, {}, False).key
    except (OSError, ValueError, KeyError, TypeError):
        return
    if said["kind"] not in FETCHED:
        return
    record, begun = SourceRecord.read(raw), SourceRecord.read(state / "data" / key)
    whole = record.complete and all((record.here / name).is_file() for name in record.files)
    newer = any(record.files.get(name) != f for name, f in begun.files.items())
    if whole and not begun.complete and not newer:
        _link(record.here, begun.here, record.files)
        write_text(begun.folder / ABOUT, (raw / ABOUT).read_text(encoding="utf-8"))
        say(f"{raw} holds the files of an earlier run; they stand in for a download")


def keep_raw(params: Params, raw: Path, state: Path) -> None:
    """Make `raw` hold what staging has just read, and drop the download that is kept there now."""
    kind, folder = Wanted.of(params).kind, place(params, state)
    names = SourceRecord.read(folder).files if kind in FETCHED else {}
    about = DESK if kind == "desk" else (folder / ABOUT).read_text(encoding="utf-8")
    if not _is_kept(raw, about, names, folder):
        with publish(raw) as scratch:
            (scratch / "files").mkdir()
            _link(folder / "files", scratch / "files", names)
            write_text(scratch / ABOUT, about)
    if kind in FETCHED:
        (folder / ABOUT).unlink(missing_ok=True)  # first: from here on nothing is said to be complete
        shutil.rmtree(folder / "files", ignore_errors=True)


def _is_kept(raw: Path, about: str, names: Iterable[str], folder: Path) -> bool:
    here = (raw / ABOUT).is_file() and (raw / ABOUT).read_text(encoding="utf-8") == about
    kept, fetched = raw / "files", folder / "files"
    return here and all((kept / n).is_file() and os.path.samefile(kept / n, fetched / n) for n in names)


def _link(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        to = target / name
        with unwritable(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            to.unlink(missing_ok=True)
            try:
                os.link(source / name, to)
            except OSError:
                shutil.copyfile(source / name, to)
