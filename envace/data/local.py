"""A folder of this machine as a source: its files are read where they are.

Flows in: what is wanted, and the folder that remembers the source. Flows out: the files with their checksums;
`source.json` and `digests.json` in that folder.
Invariant: bytes that are handed out were read and summed just now; a folder that is not what it was at its last use
is told, never silently used.
"""

from __future__ import annotations

import json
from pathlib import Path

from envace.data.fetched import Fetched, File, Record, Wanted, differences
from envace.data.progress import Say
from envace.errors import DataError
from envace.io.files import sha256, write_text

LICENCE = "as the source states"
DIGESTS = "digests.json"  # name -> bytes, time of change, sha256, as they were last read
Digests = dict[str, tuple[int, int, str]]


def in_place(want: Wanted, folder: Path | None, say: Say) -> Fetched:
    """The files of a local source, held against those that `folder` remembers. Raises DataError."""
    root, names = Path(want.uri), local_names(want)
    digests = {n: _digest(root / n) for n in names}
    files = {n: File(n, size, digest) for n, (size, _, digest) in digests.items()}
    for f in files.values():
        want.check_sum(f.name, f.sha256)
    if folder is not None:
        _remember(want, Record.read(folder), files, say)
        write_text(folder / DIGESTS, json.dumps(digests, indent=1) + "\n")
    return Fetched(want.kind, want.uri, want.revision, LICENCE, root, tuple(files.values()))


def local_names(want: Wanted) -> list[str]:
    """The files that are meant, by name. Raises DataError where there are none."""
    root = Path(want.uri)
    if not root.is_dir():
        raise DataError(f"data.uri {want.uri!r} is not a folder")
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    chosen = [n for n in names if want.matches(n)]
    if not chosen:
        raise want.nothing(names)
    want.check_names(chosen)
    return chosen


def quick_digests(want: Wanted, folder: Path) -> dict[str, tuple[int, str]]:
    """Bytes and sha256 of every file; one whose size and time of change are as last read is not read again."""
    known = _read(folder / DIGESTS)
    found = {}
    for name in local_names(want):
        path = Path(want.uri) / name
        at = path.stat()
        size, changed, digest = known.get(name, (-1, -1, ""))
        fresh = (size, changed) != (at.st_size, at.st_mtime_ns)
        found[name] = (at.st_size, sha256(path) if fresh else digest)
    return found


def _digest(path: Path) -> tuple[int, int, str]:
    at = path.stat()  # before the bytes are read: a later change shows in the time
    return at.st_size, at.st_mtime_ns, sha256(path)


def _remember(want: Wanted, record: Record, files: dict[str, File], say: Say) -> None:
    changes = differences(record.files, files, lambda a, b: (a.bytes, a.sha256) == (b.bytes, b.sha256))
    if record.complete and changes:
        record.settle(want, changes, say)
    if changes or not record.complete:
        record.files, record.licence, record.complete = dict(files), LICENCE, True
        record.write(want)


def _read(path: Path) -> Digests:
    """What was noted of the files; nothing where the note is gone or damaged, which costs one reading."""
    try:
        return {name: (int(n), int(t), str(d)) for name, (n, t, d) in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
