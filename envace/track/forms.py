"""Every form in which a secret may stand in bytes, and where it stands in them.

Flows in: secret values. Flows out: the same bytes with every one of them replaced.
Invariant: a value is found plain, in a URL, in JSON (also escaped to ASCII, also with `<` escaped), in a repr and
inside base64 at any of its three alignments. What servers without keys are given for one is no secret.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

MARK = "[redacted]"
SHORTEST = 4  # a shorter value would blank out ordinary words
STAND_INS = {"", "EMPTY", "none", "None", "dummy"}
SECRET_PARAMETER = re.compile(r"(key|token|secret|sig|signature|password|passwd|auth)$", re.I)


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


class Finder:
    """`Finder(["key"]).replaced(b"...")`. Values of under four characters are left."""

    def __init__(self, values: Iterable[str]):
        found: dict[bytes, bytes] = {}
        for value in {v for v in values if v not in STAND_INS and len(v) >= SHORTEST}:
            found |= forms(value)
        self.pattern = re.compile(b"|".join(sorted(found, key=len, reverse=True)))
        self.longest = max((len(p) for p in found), default=0)
        self._cores = set(found.values())

    def holds(self, data: bytes) -> bool:
        """A plain search is far quicker than the expression, and nearly always finds nothing."""
        return any(core in data for core in self._cores)

    def replaced(self, data: bytes) -> tuple[bytes, int]:
        """The bytes without secrets, and how many there were."""
        return self.pattern.subn(MARK.encode(), data) if self.holds(data) else (data, 0)


def address_secrets(address: str) -> Iterator[str]:
    """The password of an address and the values of its query that are named like a key, as written and as meant."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return  # no address
    if parts.password:
        yield from (parts.password, unquote(parts.password))
    for name, _, value in (pair.partition("=") for pair in parts.query.split("&")):
        if value and SECRET_PARAMETER.search(name):
            yield from (value, unquote_plus(value))
