"""What a store of files must do, and the checksums that the bytes which arrive are held to.

Flows in: a file that has just arrived and what its store lists of it. Flows out: its sha256, or DataError.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """What the store states: name of HASHES -> hex."""


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


class Checksum(Protocol):
    """What hashlib's objects do."""

    def update(self, chunk: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class Crc32:
    """zlib's checksum with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, chunk: bytes, /) -> None:
        self._value = zlib.crc32(chunk, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


HASHES: dict[str, Callable[[int], Checksum]] = {  # name -> the checksum of a file of so many bytes
    "sha256": lambda size: hashlib.sha256(),
    "sha1": lambda size: hashlib.sha1(usedforsecurity=False),
    "md5": lambda size: hashlib.md5(usedforsecurity=False),
    "crc32": lambda size: Crc32(),
    "git": lambda size: hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False),  # git's id of the content
}


def verified(path: Path, remote: Remote) -> str:
    """The sha256 of a file that arrived. Raises DataError, and removes it, when it is not what its store
    lists."""
    found = {name: HASHES[name](remote.bytes) for name in {"sha256", *remote.sums}}
    with path.open("rb") as f:
        while chunk := f.read(1 << 20):
            for checksum in found.values():
                checksum.update(chunk)
    size = path.stat().st_size
    wrong = [f"it has {size} bytes, its store lists {remote.bytes}"] if size != remote.bytes else []
    wrong += [
        f"its {name} is {found[name].hexdigest()}, its store states {stated}"
        for name, stated in remote.sums.items()
        if found[name].hexdigest() != stated
    ]
    if wrong:
        path.unlink()
        raise DataError(f"{remote.name} arrived damaged ({wrong[0]}); run again")
    return found["sha256"].hexdigest()
