"""Keys out of everything a harness wrote, whatever form it wrote them in.

Invariant: a key is found in every form of `io.redact`, across the borders of the pieces it is read in; file
names are searched too. Links are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from envace.io.files import replacing
from envace.io.redact import Secrets, Stream

PIECE = 1 << 20
ERRORS = "surrogateescape"  # what file names may hold


def scrub_folder(folder: Path, secrets: Secrets) -> int:
    """Replace every secret in every file below `folder`, and in their names. Returns files changed."""
    changed = 0
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(place, name)
            info = path.lstat()
            if stat.S_ISREG(info.st_mode):
                path.chmod(info.st_mode | 0o600)
                changed += _scrub_file(path, secrets)
            elif stat.S_ISLNK(info.st_mode) and (link := os.readlink(path)) != secrets.text(link, ERRORS):
                path.unlink()
                changed += 1
        for name in (*files, *folders):
            clean = secrets.text(name, ERRORS)
            if clean != name and os.path.lexists(Path(place, name)):
                os.replace(Path(place, name), Path(place, clean))
    return changed


def sweep(folder: Path, allowed: Iterable[Path]) -> int:
    """Remove what only looks like a file: links that lead out of `allowed`, pipes, sockets, devices."""
    roots, removed = [Path(os.path.realpath(a)) for a in allowed], 0
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*files, *folders)):
            mode, real = path.lstat().st_mode, Path(os.path.realpath(path))
            leads_in = stat.S_ISLNK(mode) and any(real.is_relative_to(root) for root in roots)
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or leads_in):
                path.unlink()
                removed += 1
    return removed


def _scrub_file(path: Path, secrets: Secrets) -> bool:
    """Look first, write only when there is something to replace: most files hold nothing."""

    def pieces(source: IO[bytes], stream: Stream) -> Iterator[bytes]:
        source.seek(0)
        while piece := source.read(PIECE):
            yield stream.feed(piece)
        yield stream.flush()

    with path.open("rb") as source:
        look = Stream(secrets)
        for _ in pieces(source, look):
            pass
        if look.hits:
            with replacing(path) as part, part.open("wb") as sink:
                sink.writelines(pieces(source, Stream(secrets)))
    return look.hits > 0
