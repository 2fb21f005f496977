"""A file on its way in: what has arrived stays on disk, and the next attempt goes on behind it.

Flows in: the bytes a store sends. Flows out: a `.part` file, its length and its checksum.
Invariant: a part holds bytes of one version of one file, and its checksum is that of the bytes on disk.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from envace.errors import DataError, EnvironmentUnready

CHUNK = 1 << 20  # bytes read from disk at a time


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as its store lists it: `Remote("data/a.parquet", 1234, etag="9f8e")`."""

    name: str  # relative, with slashes
    bytes: int
    etag: str
    version: str = ""  # where the store keeps versions
    sums: Mapping[str, str] = field(default_factory=dict)  # what the store states: name of HASHES -> hex

    @property
    def tag(self) -> str:
        """Differs where any of size, etag or version does."""
        return _short(f"{self.bytes}/{self.etag}/{self.version}")


class Crc32:
    """zlib's checksum with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, chunk: bytes) -> None:
        self._value = zlib.crc32(chunk, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


HASHES: dict[str, Callable[[int], Any]] = {  # name -> a hash of a file of so many bytes
    "sha256": lambda size: hashlib.sha256(),
    "sha1": lambda size: hashlib.sha1(usedforsecurity=False),
    "md5": lambda size: hashlib.md5(usedforsecurity=False),
    "crc32": lambda size: Crc32(),
    "git": lambda size: hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False),  # git's id of the content
}


class Broken(DataError):
    """The connection failed, not the file: another attempt may succeed."""


class Upstream(Protocol):
    """A store of files. Its methods raise DataError for what the user can fix."""

    licence: str  # known once `files` was called

    def files(self) -> list[Remote]:
        """Everything under `data.uri`."""

    def pinned(self, remote: Remote) -> Remote:
        """The same file with its version, where finding that costs a request."""

    def read(self, remote: Remote, part: Part) -> None:
        """Append what the part lacks. Raises Broken where another attempt may help."""


class Part:
    """`Part(folder, remote, moved)`: opens what an earlier attempt left; `moved(n)` hears of every change in length.

    Raises EnvironmentUnready when the disk fails.
    """

    def __init__(self, folder: Path, remote: Remote, moved: Callable[[int], None] = lambda n: None):
        self.remote, self._moved = remote, moved
        self.path = part_path(folder, remote)
        self.size = 0
        with _disk(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("r+b" if self.path.exists() else "w+b")
        self._hashes = self._fresh()
        self._absorb()

    def _fresh(self) -> dict[str, Any]:
        return {name: HASHES[name](self.remote.bytes) for name in {"sha256", *self.remote.sums}}

    def _absorb(self) -> None:
        with _disk(self.path):
            while chunk := self._file.read(CHUNK):
                self._count(chunk)
        if self.size > self.remote.bytes:
            self.restart()

    def _count(self, chunk: bytes) -> None:
        for h in self._hashes.values():
            h.update(chunk)
        self.size += len(chunk)
        self._moved(len(chunk))

    def write(self, chunk: bytes) -> int:
        """Append; returns how many bytes. Raises DataError on more than the file has."""
        if self.size + len(chunk) > self.remote.bytes:
            self.restart()
            raise DataError(f"{self.remote.name} is longer than its store lists; run again")
        with _disk(self.path):
            self._file.write(chunk)
            self._file.flush()  # what arrived outlives this process
        self._count(chunk)
        return len(chunk)

    def restart(self) -> None:
        """Throw away what arrived."""
        with _disk(self.path):
            self._file.seek(0)
            self._file.truncate()
        self._moved(-self.size)
        self.size, self._hashes = 0, self._fresh()

    def finish(self, target: Path) -> str:
        """Put the complete file in place and return its sha256. Raises DataError when it is not what was listed."""
        found = {name: h.hexdigest() for name, h in self._hashes.items()}
        for name, stated in self.remote.sums.items():
            if found[name] != stated:
                self.restart()
                raise DataError(
                    f"{self.remote.name} arrived damaged (its {name} is {found[name]}, its store states {stated}); "
                    "run again"
                )
        with _disk(target):
            os.fsync(self._file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.path, target)
        return found["sha256"]

    def close(self) -> None:
        self._file.close()


def part_path(folder: Path, remote: Remote) -> Path:
    """Where a file's bytes collect: one name a version."""
    return folder / f"{_short(remote.name)}.{remote.tag}.part"


def drop_others(folder: Path, remote: Remote) -> int:
    """Remove parts of other versions of a file; returns how many bytes they held."""
    keep, lost = part_path(folder, remote), 0
    for path in folder.glob(f"{_short(remote.name)}.*.part"):
        if path != keep:
            with _disk(path):
                lost += path.stat().st_size
                path.unlink()
    return lost


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise EnvironmentUnready(f"cannot write {path}: {e.strerror or e}") from e
