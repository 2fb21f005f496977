"""Secrets out of whatever leaves the process.

Flows in: text, JSON data, bytes and exceptions bound for logs, files, MLflow, Prefect or a report. Flows out:
the same with secrets replaced; names stay readable.
Invariant: the value of every variable named by a `key_env` parameter, and every password or key in an
address, is replaced: plain, in a URL, in JSON, in a repr, and inside base64 at any of its three alignments.
So is what looks like an authorization header or a key. What one redactor of a process was told is known to
all made after it. What servers without keys are given for one (`STAND_INS`) is no secret.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

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
HEADER = (
    r"(?i)((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|token)\s+)?[^\s\"',;}]+",
    r"\1MARK",
)
LOOKS_SECRET = [
    (re.compile(pattern), replacement.replace("MARK", MARK))
    for pattern, replacement in (
        HEADER,
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}", r"\1 MARK"),
        (rf"(?i)\b({NAME})([\"']?\s*[:=]\s*[\"']?)[^\s\"',;&}}]{{4,}}", r"\1\2MARK"),
        (r"(?i)([?&][\w.\-]*(?:key|token|secret|signature|sig|passwd|auth)=)[^\s\"'&#]{4,}", r"\1MARK"),
        (r"\b(?:sk|pk|hf|ghp|glpat)[-_][A-Za-z0-9_\-]{16,}", "MARK"),
        (r"(?i)\b([a-z][a-z0-9+.\-]*://)[^/\s:@]+:[^/\s@]+@", r"\1MARK@"),
    )
]


def written_forms(value: str) -> set[bytes]:
    """Every way a secret may stand in a file: plain, in JSON, a repr, a URL, and what of it shows in base64.

    Of base64 those characters are taken that hold bits of the secret alone, for each of the three places it
    may begin in a group of three bytes.
    """
    raw = value.encode("utf-8", "surrogateescape")
    texts = [json.dumps(value, ensure_ascii=a)[1:-1] for a in (True, False)]
    texts += [t.replace("/", "\\/") for t in texts] + [repr(value)[1:-1]]
    texts += [t.replace("<", "\\u003c") for t in texts]
    urls = [quote(value, safe="", errors="replace"), quote(value, errors="replace")]
    urls.append(quote_plus(value, errors="replace"))
    texts += urls + [re.sub(r"%[0-9A-F]{2}", lambda m: m[0].lower(), url) for url in urls]
    found = {raw, *(t.encode("utf-8", "replace") for t in texts)}
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            sure = encode(b"\0" * before + raw + b"\0\0")[first:last]
            found |= {sure} if len(sure) >= SHORTEST + 2 else set()
    return found


class Secrets:
    """`Secrets(["key"]).replaced(b"...")`. Values of under four characters are left."""

    def __init__(self, values: Iterable[str]):
        known = {v for v in values if v not in STAND_INS and len(v) >= SHORTEST}
        self._forms = sorted(set().union(*map(written_forms, known)), key=len, reverse=True)
        self.pattern = re.compile(b"|".join(map(re.escape, self._forms)))
        self.longest = max(map(len, self._forms), default=0)

    def holds(self, data: bytes) -> bool:
        """A plain search is far quicker than the expression, and nearly always finds nothing."""
        return any(form in data for form in self._forms)

    def replaced(self, data: bytes) -> tuple[bytes, int]:
        """The bytes without secrets, and how many there were."""
        return self.pattern.subn(MARK.encode(), data) if self.holds(data) else (data, 0)

    def text(self, text: str, errors: str = "surrogatepass") -> str:
        """A text without secrets."""
        return self.replaced(text.encode("utf-8", errors))[0].decode("utf-8", errors)


class Stream:
    """Replaces secrets in bytes that come in pieces, also across their borders; `hits` counts them."""

    def __init__(self, secrets: Secrets):
        self._secrets, self._held, self.hits = secrets, b"", 0

    def feed(self, piece: bytes) -> bytes:
        """What can be given out of what was read so far: a secret that began there has ended, too."""
        data = self._held + piece
        done, at, sure = [], 0, max(0, len(data) - self._secrets.longest)
        for match in self._secrets.pattern.finditer(data) if self._secrets.holds(data) else ():
            if match.start() >= sure:
                break
            done += [data[at : match.start()], MARK.encode()]
            at, self.hits = match.end(), self.hits + 1
        self._held = data[max(at, sure) :]
        return b"".join((*done, data[at:sure]))

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


_names: set[str] = set(ALWAYS)  # of variables, told to any redactor of this process
_values: set[str] = set()  # that stood in addresses


class Redactor:
    """Redactor(params_as_plain_data): knows the secrets of this process, or of a given environment alone."""

    def __init__(self, data: JSON = None, environ: Mapping[str, str] | None = None):
        texts = list(_texts(data))
        names = {text for key, text in texts if key.endswith("key_env") and text}
        values = {secret for _, text in texts if "://" in text for secret in address_secrets(text)}
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
        """The exception without secrets in what it prints: its words, notes, causes, members of a group.

        It is changed where it stands and keeps its class; one whose words cannot be set (a library's own
        object, a group) becomes a `RedactedError` with its class in the text, in which what it held is gone.
        """
        reached, todo = list[BaseException](), [error]
        while todo:
            if (one := todo.pop()) in reached:
                continue
            reached.append(one)
            self._set_words(one)
            members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
            todo += [e for e in (one.__cause__, one.__context__, *members) if e is not None]
        stand_ins = {id(e): RedactedError(self.text(f"{type(e).__name__}: {_said(e)}")) for e in reached}
        dirty = {id(e) for e in reached if not self._is_clean(e)}
        for one in reached:
            hidden, cause, context = one.__suppress_context__, one.__cause__, one.__context__
            one.__cause__ = stand_ins[id(cause)] if id(cause) in dirty else cause
            one.__context__ = stand_ins[id(context)] if id(context) in dirty else context
            one.__suppress_context__ = hidden  # setting a cause sets it
        if id(error) not in dirty:
            return error
        return stand_ins[id(error)].with_traceback(error.__traceback__)

    def _is_clean(self, error: BaseException) -> bool:
        members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        return self.text(_said(error)) == _said(error) and all(map(self._is_clean, members))

    def _set_words(self, error: BaseException) -> None:
        """Take the secrets out where the words of most exceptions stand."""
        system = ("strerror", "filename", "filename2") if isinstance(error, OSError) else ()
        for name in (*vars(error), *system):
            if isinstance(value := getattr(error, name, None), str):
                setattr(error, name, self.text(value))
        if notes := getattr(error, "__notes__", None):
            error.__notes__ = [self.text(str(note)) for note in notes]
        args = tuple(self.text(a) if isinstance(a, str) else a for a in error.args)
        if args != error.args:  # setting them again would take the words of an OSError
            error.args = args
        if self.text(_said(error)) != _said(error) and not isinstance(error, BaseExceptionGroup):
            error.args = (self.text(_said(error)),)  # one of them is an object that prints a secret

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """What leaves this block as an exception prints no secret: others write its words down."""
        try:
            yield
        except Exception as e:
            if (clean := self.error(e)) is e:
                raise
            raise clean from None


class RedactedError(Exception):
    """Stands for an exception whose own words could not be set: `ValidationError: 1 error ... [redacted]`."""


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # one whose words need what it no longer has; a traceback prints nothing of it either
        return ""
