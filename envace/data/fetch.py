"""The files of a source in a folder of this machine.

Flows in: the `data` section of the parameters. Flows out: the files under `<folder>/files/` with
`source.json` beside them; a local source stays where it is, and `source.json` alone remembers it. Invariant:
what is handed out is complete and its checksums hold; a source that changed is told, never silently used; a
version of a source takes its place when all its files are whole, and a file that is whole is not fetched
again."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from envace.config import Params
from envace.data.progress import Say, bar_class
from envace.data.source_files import (
    UNSTATED,
    Fetched,
    SourceFile,
    SourceRecord,
    Wanted,
    differences,
    link_files,
    listing,
)
from envace.data.stores import FileStore, Remote, verified
from envace.errors import DataError, EnvironmentUnready
from envace.io.files import sha256, unwritable


def place(params: Params, state: Path | None = None) -> Path:
    """The folder of a source: below `state`, else ENVACE_STATE, else `.state/`."""
    state = state or Path(os.environ.get("ENVACE_STATE") or ".state")
    return state / "data" / Wanted.of(params).key


def fetch(params: Params, folder: Path | None, say: Say = print) -> Fetched:
    """Bring the files of `data.source` (hub, s3, local) here, or find them complete.

    Only a local source may do without a folder; nothing then remembers what it was. Raises DataError when the
    source cannot be had as asked for, EnvironmentUnready when the disk fails."""
    want = Wanted.of(params)
    if folder is None:
        record = SourceRecord(Path(want.uri), licence=UNSTATED, files=local_files(want))
    else:
        with _alone(folder, say):
            record = SourceRecord.read(folder)
            _read_in_place(want, record, say) if want.kind == "local" else _bring(want, record, say)
    want.check_sums(record.files.values())
    return record.fetched(want)


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """One process at a time fetches into a folder; another waits."""
    with unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process fetches into {folder}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def local_files(want: Wanted) -> dict[str, SourceFile]:
    """The files of a local source that are meant, with their checksums. Raises DataError where there are
    none."""
    root = Path(want.uri)
    if not root.is_dir():
        raise DataError(f"data.uri {want.uri!r} is not a folder")
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    chosen = [n for n in names if want.matches(n)]
    want.check_names(chosen, names)
    try:
        return {n: SourceFile(n, (root / n).stat().st_size, sha256(root / n)) for n in chosen}
    except OSError as e:  # no permission, or gone since it was listed
        raise DataError(f"{e.filename or want.uri} cannot be read: {e.strerror or e}") from e


def _read_in_place(want: Wanted, record: SourceRecord, say: Say) -> None:
    files = local_files(want)
    want.check_sums(files.values())
    changes = differences(record.files, files, lambda a, b: (a.bytes, a.sha256) == (b.bytes, b.sha256))
    record.settle(want, changes, say)
    if changes or not record.complete:
        record.files, record.licence, record.complete = files, UNSTATED, True
        record.write(want)


def open_store(want: Wanted) -> FileStore:
    """The hub's data set or the S3 prefix that is wanted."""
    if want.kind == "hub":
        from envace.data.hub import Hub

        return Hub(want.uri, want.revision)
    from envace.data.s3 import S3

    return S3(want.uri)


def _bring(want: Wanted, record: SourceRecord, say: Say) -> None:
    """Hold a record against its store and fetch what it lacks."""
    try:
        store = open_store(want)
        names = {r.name: r for r in store.files()}
        chosen = {n: store.pinned(r) for n, r in sorted(names.items()) if want.matches(n)}
    except DataError as e:
        if not record.complete or not all(f.intact(record.here) for f in record.files.values()):
            raise
        want.check_names(record.files, ())
        return say(f"{e}; meanwhile the complete and verified copy in {record.here} is used")
    record.settle(want, differences(record.files, chosen, SourceFile.is_of), say)
    want.check_names(chosen, names)
    listed = {n: f for n, f in record.files.items() if n in chosen and f.is_of(chosen[n])}
    kept = {n: f for n, f in listed.items() if f.intact(record.here)}
    for name in sorted(listed.keys() - kept.keys()):
        say(f"{record.here / name} is damaged or gone; it is fetched again")
    if not record.complete or kept != record.files or kept.keys() != chosen.keys():
        missing = [remote for name, remote in chosen.items() if name not in kept]
        record.files = _publish(want, record, store, kept, missing, say)
        record.complete, record.licence = True, store.licence
        record.write(want)
        say(f"fetched {listing(r.name for r in missing)} into {record.here}")


def _publish(
    want: Wanted,
    record: SourceRecord,
    store: FileStore,
    kept: dict[str, SourceFile],
    missing: list[Remote],
    say: Say,
) -> dict[str, SourceFile]:
    """Fetch files, hold each to its checksums, and put them with those kept in the place of what was there.

    What an interrupted fetch of the same versions left in its part folder counts where it is whole."""
    versions = repr([(r.name, r.etag, r.version) for r in missing])
    parts = record.folder / "parts" / hashlib.sha256(versions.encode()).hexdigest()[:16]
    with unwritable(parts):
        for other in parts.parent.glob("*"):
            if other != parts:
                shutil.rmtree(other)
        parts.mkdir(parents=True, exist_ok=True)
    late = [r for r in missing if not _is_whole(parts / r.name, r)]
    need, free = sum(r.bytes for r in late), shutil.disk_usage(parts).free
    if need > free:
        raise EnvironmentUnready(
            f"data.uri {want.uri!r} needs {need / 1e9:.1f} GB and {record.folder} has {free / 1e9:.1f} GB "
            "free; set data.patterns to fewer files or ENVACE_STATE to a folder on a larger disk"
        )
    for remote in store.download(late, parts, bar_class(say)) if late else ():
        verified(parts / remote.name, remote)
    files = kept | {r.name: SourceFile.arrived(r, sha256(parts / r.name)) for r in missing}
    link_files(record.here, parts, kept)
    with unwritable(record.here):
        shutil.rmtree(parts / ".cache", ignore_errors=True)  # the hub's notes on what it fetched
        if record.here.exists():
            shutil.rmtree(record.here)
        os.replace(parts, record.here)
        parts.parent.rmdir()
    return files


def _is_whole(path: Path, remote: Remote) -> bool:
    """Whether an earlier fetch brought a file whole, which is known where its store states a checksum."""
    try:
        return bool(remote.sums) and path.is_file() and bool(verified(path, remote))
    except DataError:
        return False
