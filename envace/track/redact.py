"""Secrets out of whatever leaves the process.

Flows in: text and JSON data bound for logs, MLflow or a report. Flows out: the same with secrets replaced.
Invariant: the value of every variable named by a `key_env` parameter, in every form of `forms`, and everything that
looks like an authorization header, a key or a password in an address, is replaced whole; the names stay readable.
What one redactor of a process was told is known to all that are made after it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from envace.track.clean import cleaned, raise_as_it_is
from envace.track.forms import MARK, Finder, address_secrets

ALWAYS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "PREFECT_API_KEY",
    "HF_TOKEN",
    "SERPAPI_API_KEY",
)
SECRET_KEY = re.compile(
    r"^(authorization|proxy-authorization|x-api-key|api[_-]?key|access[_-]?token|password|passwd|secret)$",
    re.I,
)
LOOKS_SECRET = [
    (
        re.compile(
            r"(?i)((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|token)\s+)?[^\s\"',;}]+"
        ),
        r"\1" + MARK,
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}"), r"\1 " + MARK),
    (
        re.compile(
            r"(?i)\b((?:x-)?api[_-]?key|access[_-]?token|password|secret)([\"']?\s*[:=]\s*[\"']?)[^\s\"',;&}]{4,}"
        ),
        r"\1\2" + MARK,
    ),
    (
        re.compile(r"(?i)([?&][\w.\-]*(?:key|token|secret|signature|sig|passwd|auth)=)[^\s\"'&#]{4,}"),
        r"\1" + MARK,
    ),
    (re.compile(r"\b(?:sk|pk|hf|ghp|glpat)[-_][A-Za-z0-9_\-]{16,}"), MARK),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.\-]*://)[^/\s:@]+:[^/\s@]+@"), r"\1" + MARK + "@"),
]


def key_variables(data: Any) -> Iterator[str]:
    """Names of environment variables under any `key_env` of nested plain data."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if str(key).endswith("key_env") and isinstance(value, str) and value:
                yield value
            else:
                yield from key_variables(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from key_variables(value)


def secrets_in_addresses(data: Any) -> Iterator[str]:
    """Passwords and keys in any address of nested plain data."""
    if isinstance(data, str):
        yield from address_secrets(data) if "://" in data else ()
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from secrets_in_addresses(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from secrets_in_addresses(value)


_names: set[str] = set(ALWAYS)  # of variables, told to any redactor of this process
_values: set[str] = set()  # that stood in addresses


class Redactor:
    """Redactor(params_as_plain_data): knows the secrets of this process, or of a given environment alone."""

    def __init__(self, data: Any = None, environ: Mapping[str, str] | None = None):
        names, values = set(key_variables(data or {})), set(secrets_in_addresses(data))
        if environ is None:
            _names.update(names)
            _values.update(values)
            names, values, environ = _names, _values, os.environ
        self._finder = Finder({environ.get(name, "") for name in (*names, *ALWAYS)} | values)

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        if self._finder.holds(data):
            text = self._finder.replaced(data)[0].decode("utf-8", "surrogatepass")
        for pattern, repl in LOOKS_SECRET:
            text = pattern.sub(repl, text)
        return text

    def data(self, value: Any) -> Any:
        """Plain JSON data with every string redacted; values under secret-looking keys go whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return dict(self._pair(k, v) for k, v in value.items())
        if isinstance(value, (list, tuple)):
            return [self.data(v) for v in value]
        return value

    def _pair(self, key: Any, value: Any) -> tuple[Any, Any]:
        secret = SECRET_KEY.match(str(key)) and value
        return self.text(key) if isinstance(key, str) else key, MARK if secret else self.data(value)

    def error(self, error: BaseException) -> BaseException:
        """The exception without secrets in what it prints: its words, notes, causes, and the members of a group."""
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
