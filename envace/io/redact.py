"""Secrets out of whatever leaves the process.

Flows in: text, JSON data, bytes and exceptions bound for logs, files, MLflow, Prefect or a report. Flows out:
the same with secrets replaced; names stay readable. Invariant: the value of every variable named by a
`key_env` parameter, and every password or key in an address, is replaced whole: plain, in a URL, in JSON, in
a repr, and inside base64 at any of its three alignments. So is what looks like an authorization header or a
key. What one redactor of a process was told is known to all made after it. What servers without keys are
given for one is no secret."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from envace.io.redact_errors import cleaned, raise_as_it_is
from envace.types import JSON

MARK = "[redacted]"
SHORTEST = 4  # a shorter value would blank out ordinary words
STAND_INS = {"", "EMPTY", "none", "None", "dummy"}
ALWAYS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "PREFECT_API_KEY",
    "HF_TOKEN",
    "SERPAPI_API_KEY",
)
SECRET_PARAMETER = re.compile(r"(key|token|secret|sig|signature|password|passwd|auth)$", re.I)
NAME = r"(?:x-)?api[_-]?key|access[_-]?token|password|secret"
SECRET_KEY = re.compile(rf"^({NAME}|authorization|proxy-authorization|passwd)$", re.I)
LOOKS_SECRET = [
    (re.compile(pattern), replacement.replace("MARK", MARK))
    for pattern, replacement in (
        (
            r"(?i)((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|token)\s+)?[^\s\"',;}]+",
            r"\1MARK",
        ),
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}", r"\1 MARK"),
        (rf"(?i)\b({NAME})([\"']?\s*[:=]\s*[\"']?)[^\s\"',;&}}]{{4,}}", r"\1\2MARK"),
        (r"(?i)([?&][\w.\-]*(?:key|token|secret|signature|sig|passwd|auth)=)[^\s\"'&#]{4,}", r"\1MARK"),
        (r"\b(?:sk|pk|hf|ghp|glpat)[-_][A-Za-z0-9_\-]{16,}", "MARK"),
        (r"(?i)\b([a-z][a-z0-9+.\-]*://)[^/\s:@]+:[^/\s@]+@", r"\1MARK@"),
    )
]


def forms(value: str) -> dict[bytes, bytes]:
    """Every way a secret may stand in a file: regular expression -> the bytes that are in every match of
    it."""
    raw = value.encode("utf-8", "surrogateescape")
    texts = {
        raw,
        *(json.dumps(value, ensure_ascii=a)[1:-1].encode("utf-8", "replace") for a in (True, False)),
    }
    texts |= {t.replace(b"/", b"\\/") for t in texts} | {t.replace(b"<", b"\\u003c") for t in texts}
    texts.add(repr(value)[1:-1].encode("utf-8", "replace"))
    in_path, in_form = quote(value, errors="replace"), quote_plus(value, errors="replace")
    for quoted in (quote(value, safe="", errors="replace"), in_path, in_form):
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


class Secrets:
    """`Secrets(["key"]).replaced(b"...")`. Values of under four characters are left."""

    def __init__(self, values: Iterable[str]):
        found: dict[bytes, bytes] = {}
        for value in {v for v in values if v not in STAND_INS and len(v) >= SHORTEST}:
            found |= forms(value)
        longest_first: list[bytes] = sorted(found, key=len, reverse=True)
        self.pattern = re.compile(b"|".join(longest_first))
        self.longest = max((len(p) for p in found), default=0)
        self._cores = set(found.values())

    def holds(self, data: bytes) -> bool:
        """A plain search is far quicker than the expression, and nearly always finds nothing."""
        return any(core in data for core in self._cores)

    def replaced(self, data: bytes) -> tuple[bytes, int]:
        """The bytes without secrets, and how many there were."""
        return self.pattern.subn(MARK.encode(), data) if self.holds(data) else (data, 0)

    def text(self, text: str, errors: str = "surrogatepass") -> str:
        """A text without secrets, itself where it holds none."""
        data = text.encode("utf-8", errors)
        return self.replaced(data)[0].decode("utf-8", errors) if self.holds(data) else text


class Stream:
    """Replaces secrets in bytes that come in pieces, also across their borders; `hits` counts them."""

    def __init__(self, secrets: Secrets):
        self._secrets, self._held, self.hits = secrets, b"", 0

    def feed(self, piece: bytes) -> bytes:
        """What can be given out of what was read so far."""
        data, overlap = self._held + piece, self._secrets.longest
        done, at = [], 0
        for match in self._secrets.pattern.finditer(data) if self._secrets.holds(data) else ():
            if match.end() > len(data) - overlap:
                break  # it may go on in the next piece
            done += [data[at : match.start()], MARK.encode()]
            at, self.hits = match.end(), self.hits + 1
        keep = max(at, len(data) - 2 * overlap)
        done.append(data[at:keep])
        self._held = data[keep:]
        return b"".join(done)

    def flush(self) -> bytes:
        """The rest, at the end."""
        rest, found = self._secrets.replaced(self._held)
        self._held, self.hits = b"", self.hits + found
        return rest


def address_secrets(address: str) -> Iterator[str]:
    """The password of an address and the values of its query that are named like a key, as written and as
    meant."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return  # no address
    if parts.password:
        yield from (parts.password, unquote(parts.password))
    for name, _, value in (pair.partition("=") for pair in parts.query.split("&")):
        if value and SECRET_PARAMETER.search(name):
            yield from (value, unquote_plus(value))


def _texts(data: JSON, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text of nested plain data, with the key it stands under."""
    if isinstance(data, str):
        yield key, data
    elif isinstance(data, Mapping):
        for name, value in data.items():
            yield from _texts(value, str(name))
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _texts(value)


def key_variables(data: JSON) -> Iterator[str]:
    """Names of environment variables under any `key_env` of nested plain data."""
    return (text for key, text in _texts(data) if key.endswith("key_env") and text)


_names: set[str] = set(ALWAYS)  # of variables, told to any redactor of this process
_values: set[str] = set()  # that stood in addresses


class Redactor:
    """Redactor(params_as_plain_data): knows the secrets of this process, or of a given environment alone."""

    def __init__(self, data: JSON = None, environ: Mapping[str, str] | None = None):
        names, values = set(key_variables(data)), set[str]()
        for _, text in _texts(data):
            values.update(address_secrets(text) if "://" in text else ())
        if environ is None:
            _names.update(names)
            _values.update(values)
            names, values, environ = _names, _values, os.environ
        self._secrets = Secrets({environ.get(name, "") for name in (*names, *ALWAYS)} | values)

    def text(self, text: str) -> str:
        """A text without secrets and without what looks like one."""
        text = self._secrets.text(text)
        for pattern, replacement in LOOKS_SECRET:
            text = pattern.sub(replacement, text)
        return text

    def data(self, value: JSON) -> JSON:
        """Plain JSON data with every string redacted; values under secret-looking keys go whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            secret = {k for k, v in value.items() if v and SECRET_KEY.match(str(k))}
            return {self.data(k): MARK if k in secret else self.data(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(v) for v in value]
        return value

    def error(self, error: BaseException) -> BaseException:
        """The exception without secrets in what it prints: its words, notes, causes, and members of a
        group."""
        return cleaned(error, self.text)

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """What leaves this block as an exception prints no secret: others write its words down."""
        clean = None
        try:
            yield
        except Exception as e:
            if (clean := self.error(e)) is e:
                raise
        if clean is not None:
            raise_as_it_is(clean)
