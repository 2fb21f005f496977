"""Keys out of everything a harness wrote, whatever form it wrote them in.

Flows in: a folder or a stream of bytes, and the keys. Flows out: the same with every key replaced.
Invariant: a key is found plain, in a URL, in JSON (also escaped to ASCII) and inside base64 at any of its three
alignments, across the borders of the pieces it is read in; file names are searched too. Links are not followed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

from envace.data.atomic import replacing
from envace.track.redact import MARK, SHORTEST

PIECE = 1 << 20
STAND_INS = {"", "EMPTY", "none", "None", "dummy"}  # what servers without keys are given: no secret


def forms(value: str) -> dict[bytes, bytes]:
    """Every way a key may stand in a file: regular expression -> the bytes that are in every match of it."""
    raw = value.encode("utf-8", "surrogateescape")
    texts = {
        raw,
        json.dumps(value)[1:-1].encode(),
        json.dumps(value, ensure_ascii=False)[1:-1].encode("utf-8", "replace"),
    }
    texts |= {t.replace(b"/", b"\\/") for t in texts} | {t.replace(b"<", b"\\u003c") for t in texts}
    texts.add(repr(value)[1:-1].encode("utf-8", "replace"))
    for quoted in (
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
    ):
        lower = re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), quoted)
        texts |= {quoted.encode(), lower.encode()}
    return {re.escape(t): t for t in texts} | _base64_forms(raw)


def _base64_forms(raw: bytes) -> dict[bytes, bytes]:
    """What of `raw` shows in base64 text, for the three places it may begin in a group of three bytes.

    Characters that also hold bits of a neighbour are matched as any character of the alphabet.
    """
    found = {}
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            sure = encode(b"\0" * before + raw + b"\0\0")[first:last]
            if len(sure) >= SHORTEST + 2:
                head = b"[A-Za-z0-9+/_-]?" if before else b""
                found[head + re.escape(sure) + b"[A-Za-z0-9+/_-]?=?=?"] = sure
    return found


class Scrubber:
    """`Scrubber(["key"])`: replaces keys in bytes that come in pieces. Keys of under four characters are left."""

    def __init__(self, values: Iterable[str]):
        found: dict[bytes, bytes] = {}
        for value in {v for v in values if v not in STAND_INS and len(v) >= SHORTEST}:
            found |= forms(value)
        longest_first = sorted(found, key=len, reverse=True)
        self._find = re.compile(b"|".join(longest_first))
        self._cores = set(found.values())
        self._overlap = max((len(p) for p in found), default=0)
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
        for match in self._find.finditer(data) if self._holds(data) else ():
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
        if not self._holds(data):
            return data
        data, n = self._find.subn(MARK.encode(), data)
        self.hits += n
        return data

    def _holds(self, data: bytes) -> bool:
        """A plain search is far quicker than the expression, and nearly always finds nothing."""
        return any(core in data for core in self._cores)


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
