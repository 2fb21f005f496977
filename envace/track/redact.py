"""Secrets out of whatever leaves the process.

Flows in: text and JSON data bound for logs, MLflow or a report. Flows out: the same with secrets replaced.
Invariant: the value of every variable named by a `key_env` parameter, plain or inside JSON text, and everything
that looks like an authorization header, a key or a password in an address, is replaced whole; the names stay
readable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

MARK = "[redacted]"
SHORTEST = 4  # a shorter value would blank out ordinary words
ALWAYS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "PREFECT_API_KEY",
    "HF_TOKEN",
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


def _as_json(value: str) -> Iterator[str]:
    """A value as it stands inside JSON text, and in that with the escape prompts use."""
    for ascii_only in (True, False):
        inside = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield from (inside, inside.replace("<", "\\u003c"))


class Redactor:
    """Redactor(params_as_plain_data): knows the secrets of this process."""

    def __init__(self, data: Any = None, environ: Mapping[str, str] | None = None):
        environ = os.environ if environ is None else environ
        values = {environ.get(name, "") for name in (*key_variables(data or {}), *ALWAYS)}
        values |= {form for value in values if len(value) >= SHORTEST for form in _as_json(value)}
        self._secrets = sorted((v for v in values if len(v) >= SHORTEST), key=len, reverse=True)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MARK)
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
