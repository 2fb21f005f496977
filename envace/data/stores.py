"""What a store of files must do, and the checksums that the bytes which arrive are held to."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tqdm import tqdm

from envace.errors import DataError


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as its store lists it: `Remote("data/a.parquet", 1234, etag="9f8e")`."""

    name: str
    """Relative, with slashes."""
    bytes: int
    etag: str
    version: str = ""
    """Where the store keeps versions."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """What the store states, in hex: sha256, sha1, md5, crc32 or git, its id of the content."""


class FileStore(Protocol):
    """A store of files, addressed by `data.uri`. Its methods raise DataError for what the user can fix."""

    licence: str
    """Known once `files` was called."""

    def files(self) -> list[Remote]:
        """Everything under `data.uri`."""

    def pinned(self, remote: Remote) -> Remote:
        """The same file with its version and checksums, where finding those costs a request."""

    def download(self, remotes: Sequence[Remote], into: Path, bar: type[tqdm]) -> Iterator[Remote]:
        """Bring files to `into / name`; each is given out once it is there."""


def verified(path: Path, remote: Remote) -> str:
    """The sha256 of a file that arrived. Raises DataError, and removes it, when it is not what its store
    lists."""
    size = path.stat().st_size
    wrong = f"it has {size} bytes, its store lists {remote.bytes}" if size != remote.bytes else ""
    found = {name: checksum(path, name) for name in ("sha256", *remote.sums)}
    for name, stated in remote.sums.items():
        if found[name] != stated:
            wrong = wrong or f"its {name} is {found[name]}, its store states {stated}"
    if wrong:
        path.unlink()
        raise DataError(f"{remote.name} arrived damaged ({wrong}); run again")
    return found["sha256"]


def checksum(path: Path, name: str) -> str:
    """A checksum of a file, in hex."""
    with path.open("rb") as f:
        if name == "crc32":
            value = 0
            while chunk := f.read(1 << 20):
                value = zlib.crc32(chunk, value)
            return f"{value:08x}"
        start = hashlib.new("sha1" if name == "git" else name, usedforsecurity=False)
        if name == "git":
            start.update(b"blob %d\0" % path.stat().st_size)
        return hashlib.file_digest(f, lambda: start).hexdigest()
