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
from pathlib import Path

from envace.config import Params
from envace.data.fetch import place
from envace.data.progress import Say
from envace.data.source_files import SourceRecord, Wanted, link_files
from envace.io.files import publish, write_text

FETCHED = ("hub", "s3")
ABOUT = "source.json"


def adopt_raw(raw: Path, state: Path, say: Say) -> None:
    """Let `raw` stand in for a download of its source that is not below `state`, whichever source is staged
    now. Raises DataError when `raw` is damaged."""
    try:
        said = json.loads((raw / ABOUT).read_text(encoding="utf-8"))
        patterns = tuple(said["patterns"])
        key = Wanted(said["kind"], said["uri"], said["revision"], patterns, {}, False).key
    except (OSError, ValueError, KeyError, TypeError):
        return
    if said["kind"] not in FETCHED:
        return
    record, here = SourceRecord.read(raw), SourceRecord.read(state / "data" / key)
    whole = record.complete and all((record.here / name).is_file() for name in record.files)
    if whole and not here.complete:
        link_files(record.here, here.here, record.files)
        write_text(here.folder / ABOUT, (raw / ABOUT).read_text(encoding="utf-8"))
        say(f"{raw} holds the files of an earlier run; they stand in for a download")


def keep_raw(params: Params, raw: Path, state: Path) -> None:
    """Make `raw` hold what staging has just read, and drop the download that is kept there now."""
    kind, folder = Wanted.of(params).kind, place(params, state)
    names = SourceRecord.read(folder).files if kind in FETCHED else {}
    text = '{"kind": "desk"}\n' if kind == "desk" else (folder / ABOUT).read_text(encoding="utf-8")
    kept, fetched = raw / "files", folder / "files"
    same = (raw / ABOUT).is_file() and (raw / ABOUT).read_text(encoding="utf-8") == text
    if not same or not all((kept / n).is_file() and os.path.samefile(kept / n, fetched / n) for n in names):
        with publish(raw) as scratch:
            (scratch / "files").mkdir()
            link_files(fetched, scratch / "files", names)
            write_text(scratch / ABOUT, text)
    if kind in FETCHED:
        (folder / ABOUT).unlink(missing_ok=True)  # first: from here on nothing is said to be complete
        shutil.rmtree(fetched, ignore_errors=True)
