"""The source's files as an output of staging, so that a DVC remote keeps them and a clone can stage anew without it.

Flows in: the download folders below `.state/`. Flows out: `data/raw/`: `source.json`, and of a hub or S3 source the
files. Of a local source `source.json` alone names the files: they are the user's own.
Invariant: `data/raw/` holds a complete, verified download or the bare name of a source; no file is stored twice, since
what is adopted is linked and what is kept is moved (copied only where the disk cannot link, as across file systems).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from envace.config import Params
from envace.data.fetch import place
from envace.data.fetched import File, Record, Wanted
from envace.data.progress import Say
from envace.errors import EnvironmentUnready
from envace.io.files import write_text

FETCHED = ("hub", "s3")
ABOUT = "source.json"


def adopt(raw: Path, state: Path, say: Say) -> None:
    """Let `raw` stand in for a download of its source that is not below `state`, whichever source is staged now.

    A download that has begun to fetch what changed since stays, so that it goes on where it was interrupted. Raises DataError when `raw` is damaged.
    """
    if not (key := _key(raw / ABOUT)):
        return
    record, folder = Record.read(raw), state / "data" / key
    whole = record.complete and all((record.here / name).is_file() for name in record.files)
    begun = Record.read(folder)
    if not whole or begun.complete or _newer(begun, record):
        return
    _link(record.here, folder / "files", list(record.files))
    write_text(folder / ABOUT, (raw / ABOUT).read_text(encoding="utf-8"))
    say(f"{raw} holds the files of an earlier run; they stand in for a download")


def _newer(begun: Record, record: Record) -> bool:
    """Whether a download holds a file, or a version of one, that a complete record does not know."""

    def version(f: File | None) -> tuple[str, ...]:
        return (f.sha256, f.etag, f.version) if f else ()

    return any(version(f) != version(record.files.get(name)) for name, f in begun.files.items())


def kept(params: Params, raw: Path, state: Path) -> bool:
    """Whether `raw` already is what `keep` would make of it."""
    want, folder = Wanted.of(params), place(params, state)
    if want.kind == "desk":
        return _text(raw / ABOUT) == _DESK
    files = Record.read(folder).files if want.kind in FETCHED else ()
    return _text(raw / ABOUT) == _text(folder / ABOUT) and all(
        (raw / "files" / name).is_file() and os.path.samefile(raw / "files" / name, folder / "files" / name)
        for name in files
    )


def keep(params: Params, into: Path, state: Path) -> None:
    """Fill an empty folder with what staging has just read."""
    want, folder = Wanted.of(params), place(params, state)
    (into / "files").mkdir(parents=True)
    if want.kind == "desk":
        write_text(into / ABOUT, _DESK)
        return
    if want.kind in FETCHED:
        _link(folder / "files", into / "files", list(Record.read(folder).files))
    shutil.copyfile(folder / ABOUT, into / ABOUT)


def release(params: Params, state: Path) -> None:
    """Drop the download, now that it is kept."""
    folder = place(params, state)
    if Wanted.of(params).kind in FETCHED:
        (folder / ABOUT).unlink(missing_ok=True)  # first: from here on nothing is said to be complete
        shutil.rmtree(folder / "files", ignore_errors=True)


_DESK = json.dumps({"kind": "desk"}) + "\n"


def _key(path: Path) -> str:
    """The key of the fetched source a `source.json` is of; nothing where it is of none."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["kind"] not in FETCHED:
            return ""
        return Wanted(said["kind"], said["uri"], said["revision"], tuple(said["patterns"]), {}, False).key
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _link(source: Path, target: Path, names: list[str]) -> None:
    for name in names:
        to = target / name
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.unlink(missing_ok=True)
            try:
                os.link(source / name, to)
            except OSError:
                shutil.copyfile(source / name, to)
        except OSError as e:
            raise EnvironmentUnready(f"cannot write {to}: {e.strerror or e}") from e
