"""Keys out of everything a harness wrote, whatever form it wrote them in.

Flows in: a folder or a stream of bytes, and the keys. Flows out: the same with every key replaced.
Invariant: a key is found in every form of `track.forms`, across the borders of the pieces it is read in; file names
are searched too. Links are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from envace.io.files import replacing
from envace.track.forms import MARK, Finder

PIECE = 1 << 20


class Scrubber:
    """`Scrubber(["key"])`: replaces keys in bytes that come in pieces. Keys of under four characters are left."""

    def __init__(self, values: Iterable[str]):
        self._finder = Finder(values)
        self._overlap = self._finder.longest
        self._held = b""
        self.hits = 0

    def text(self, text: str) -> str:
        """A whole text at once."""
        data = text.encode("utf-8", "surrogateescape")
        return self._replace(data).decode("utf-8", "surrogateescape")

    def feed(self, piece: bytes) -> bytes:
        """What can be given out of what was read so far."""
        data = self._held + piece
        done, at = [], 0
        for match in self._finder.pattern.finditer(data) if self._finder.holds(data) else ():
            if match.end() > len(data) - self._overlap:
                break  # it may go on in the next piece
            done += [data[at : match.start()], MARK.encode()]
            at, self.hits = match.end(), self.hits + 1
        keep = max(at, len(data) - 2 * self._overlap)
        done.append(data[at:keep])
        self._held = data[keep:]
        return b"".join(done)

    def flush(self) -> bytes:
        """The rest, at the end of a stream."""
        data, self._held = self._held, b""
        return self._replace(data)

    def _replace(self, data: bytes) -> bytes:
        data, n = self._finder.replaced(data)
        self.hits += n
        return data


def scrub_folder(folder: Path, secrets: Mapping[str, str]) -> int:
    """Replace every value of `secrets` in every file below `folder`, and in their names. Returns files changed."""
    values, changed = list(secrets.values()), 0
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(place, name)
            info = path.lstat()
            if stat.S_ISREG(info.st_mode):
                path.chmod(info.st_mode | 0o600)
                changed += _scrub_file(path, Scrubber(values))
            elif stat.S_ISLNK(info.st_mode) and Scrubber(values).text(os.readlink(path)) != os.readlink(path):
                path.unlink()
                changed += 1
        for name in (*files, *folders):
            clean = Scrubber(values).text(name)
            if clean != name and os.path.lexists(Path(place, name)):
                os.replace(Path(place, name), Path(place, clean))
    return changed


def sweep(folder: Path, allowed: Iterable[Path]) -> int:
    """Remove what only looks like a file of ours: links that lead out of `allowed`, pipes, sockets, devices."""
    roots, removed = [Path(os.path.realpath(a)) for a in allowed], 0
    for place, folders, files in os.walk(folder):
        for name in (*files, *folders):
            path, mode = Path(place, name), os.lstat(os.path.join(place, name)).st_mode
            leads_in = any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots)
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and leads_in)):
                path.unlink()
                removed += 1
    return removed


def _scrub_file(path: Path, scrubber: Scrubber) -> bool:
    """Look first, write only when there is something to replace: most files hold nothing."""
    with path.open("rb") as source:
        while piece := source.read(PIECE):
            scrubber.feed(piece)
        scrubber.flush()
        if not scrubber.hits:
            return False
        source.seek(0)
        with replacing(path) as part, part.open("wb") as sink:
            while piece := source.read(PIECE):
                sink.write(scrubber.feed(piece))
            sink.write(scrubber.flush())
    return True
