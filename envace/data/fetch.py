"""The files of a source in a folder of this machine.

Flows in: the `data` section of the parameters. Flows out: the files under `<folder>/files/` with `source.json` beside
them; a local source stays where it is, and `source.json` alone remembers it.
Invariant: what is handed out is complete and its checksums hold; a store that changed is told, never silently used;
a fetch that was interrupted goes on at the byte where it stopped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from envace.config import Params
from envace.data.fetched import Fetched, File, Record, Wanted, differences, listing
from envace.data.local import in_place
from envace.data.parts import Broken, Part, Remote, Upstream, drop_others, part_path
from envace.data.progress import Progress, Say
from envace.errors import DataError, EnvironmentUnready

T = TypeVar("T")
ATTEMPTS = 5  # in a row that brought nothing
PAUSE_S = 1.0  # before the second attempt; doubles with each


def place(params: Params, state: Path | None = None) -> Path:
    """The folder of a source: below `state`, else envaceSTATE, else `.state/`."""
    state = state or Path(os.environ.get("envaceSTATE") or ".state")
    return state / "data" / Wanted.of(params).key


def fetch(
    params: Params, folder: Path | None, progress: Progress = lambda *_: None, say: Say = print
) -> Fetched:
    """Bring the files of `data.source` (hub, s3, local) here, or find them complete.

    Only a local source may do without a folder; nothing then remembers what it was. Raises DataError when the source cannot be had as asked for, EnvironmentUnready when the disk fails.
    """
    want = Wanted.of(params)
    if want.kind == "local" and folder is None:
        return in_place(want, None, say)
    with _alone(folder, say):
        if want.kind == "local":
            return in_place(want, folder, say)
        return _Fetch(want, UPSTREAMS[want.kind](want), Record.read(folder), progress, say).run()


@dataclass
class _Fetch:
    """One fetch from a store."""

    want: Wanted
    upstream: Upstream
    record: Record
    progress: Progress
    say: Say
    done: int = 0  # bytes
    total: int = 0

    def run(self) -> Fetched:
        want, record = self.want, self.record
        try:
            everything = _again(self.upstream.files)
            listed = {
                r.name: _again(partial(self.upstream.pinned, r)) for r in everything if want.matches(r.name)
            }
        except DataError as e:
            return self._without_store(e)
        self._settle_changes(listed)
        if not listed:
            raise want.nothing(r.name for r in everything)
        want.check_names(listed)
        record.licence = self.upstream.licence
        missing = self._missing(listed)
        self._fetch_all(listed, missing)
        if missing or not record.complete:
            record.complete = True
            record.write(want)
            self.say(f"fetched {listing(r.name for r in missing)} into {record.here}")
        return self._handed_out()

    def _handed_out(self) -> Fetched:
        for f in self.record.files.values():
            self.want.check_sum(f.name, f.sha256)
        return self.record.fetched(self.want)

    def _without_store(self, error: DataError) -> Fetched:
        """What was fetched earlier, where it is all there."""
        record = self.record
        if not record.complete or not all(f.intact(record.here) for f in record.files.values()):
            raise error
        self.want.check_names(record.files)
        self.say(f"{error}; meanwhile the complete and verified copy in {record.here} is used")
        return self._handed_out()

    def _settle_changes(self, listed: dict[str, Remote]) -> None:
        """Forget what the store has no more or in another version.

        Raises DataError where the fetch was complete: what came of it may be in use.
        """
        record = self.record
        changes = differences(record.files, listed, File.is_of)
        if record.complete and changes:
            record.settle(self.want, changes, self.say)
        for name, f in list(record.files.items()):
            if name not in listed or not f.is_of(listed[name]):
                if not record.complete:
                    self.say(f"{name} changed at its source before all was fetched; it starts again")
                del record.files[name]
                (record.here / name).unlink(missing_ok=True)
        record.complete = record.complete and not changes

    def _missing(self, listed: dict[str, Remote]) -> list[Remote]:
        """What has to be fetched, in order of names."""
        missing = []
        for name, remote in sorted(listed.items()):
            f = self.record.files.get(name)
            if f is not None and f.intact(self.record.here):
                continue
            if f is not None:
                self.say(f"{self.record.here / name} is damaged or gone; it is fetched again")
            missing.append(remote)
        return missing

    def _fetch_all(self, listed: dict[str, Remote], missing: list[Remote]) -> None:
        parts = self.record.folder / "parts"
        _check_room(self.want, parts, missing)
        self.total = sum(r.bytes for r in listed.values())
        self.done = self.total - sum(r.bytes for r in missing)
        for remote in missing:
            if lost := drop_others(parts, remote):
                self.say(f"{remote.name} changed at its source; it starts again without its {lost} old bytes")
            self.record.files[remote.name] = f = self._transfer(parts, remote)
            self.record.write(self.want)
            self.want.check_sum(f.name, f.sha256)

    def _transfer(self, parts: Path, remote: Remote) -> File:
        """One file, in as many attempts as it takes while they bring something."""
        with closing(Part(parts, remote, partial(self._moved, remote.name))) as part:
            if part.size:
                self.say(f"{remote.name}: going on at byte {part.size} of {remote.bytes}")
            fruitless = 0
            while part.size < remote.bytes:
                before = part.size
                try:
                    self.upstream.read(remote, part)
                    if part.size < remote.bytes:
                        raise Broken(f"{remote.name}: the answer ended early; run again")
                except Broken as e:
                    fruitless = 1 if part.size > before else fruitless + 1
                    if fruitless >= ATTEMPTS:
                        raise
                    self.say(f"{e}; trying again from byte {part.size} of {remote.name}")
                    time.sleep(PAUSE_S * 2 ** (fruitless - 1))
            digest = part.finish(self.record.here / remote.name)
        verified = " ".join(sorted(remote.sums))
        return File(remote.name, remote.bytes, digest, remote.etag, remote.version, verified)

    def _moved(self, name: str, n: int) -> None:
        self.done += n
        self.progress(self.done, self.total, name)


def _again(ask: Callable[[], T]) -> T:
    """What the store answers, asked up to three times."""
    for k in range(2):
        try:
            return ask()
        except Broken:
            time.sleep(PAUSE_S * 2**k)
    return ask()


def _check_room(want: Wanted, parts: Path, missing: list[Remote]) -> None:
    parts.mkdir(parents=True, exist_ok=True)
    here = sum(p.stat().st_size for r in missing if (p := part_path(parts, r)).exists())
    need, free = sum(r.bytes for r in missing) - here, shutil.disk_usage(parts).free
    if need > free:
        raise EnvironmentUnready(
            f"data.uri {want.uri!r} needs {need / 1e9:.1f} GB and {parts.parent} has {free / 1e9:.1f} GB free; set "
            "data.patterns to fewer files or envaceSTATE to a folder on a larger disk"
        )


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """One process at a time fetches into a folder; another waits."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as e:
        raise EnvironmentUnready(f"cannot write {folder}: {e.strerror or e}") from e
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process fetches into {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _hub(want: Wanted) -> Upstream:
    from envace.data.hub import Hub

    return Hub(want.uri, want.revision)


def _s3(want: Wanted) -> Upstream:
    from envace.data.s3 import S3

    return S3(want.uri)


UPSTREAMS: dict[str, Callable[[Wanted], Upstream]] = {"hub": _hub, "s3": _s3}
