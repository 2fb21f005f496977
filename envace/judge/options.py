"""What the judge is told, read from the parameters in one place.

Flows in: `JudgeParams`. Flows out: `Options`, with the addresses in full and the key still in the environment.
Invariant: the key itself is in no field, no repr and no message; it is read from the environment when a
connection is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from envace.config import JudgeParams
from envace.errors import EnvironmentUnready, ParamsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One judge: where it is asked, how, and what is kept of it."""

    endpoints: tuple[tuple[str, float], ...]  # (address of chat completions, weight); all serve `model`
    model: str
    key_env: str = ""  # the same key for all endpoints
    temperature: float = 0.6
    top_p: float = 0.8
    max_tokens: int = 6000
    timeout_s: float = 120.0  # of one request
    attempts: int = 5
    concurrency: int = 64  # requests in flight over all endpoints
    mode: Literal["turn", "step_item"] = "turn"  # the method's `judge_mode`
    audit: float = 0.0  # share of turns judged in the other mode too
    audit_seed: int = 1
    cache: str = ""  # folder; empty keeps nothing
    price_in: float = 0.0  # of a million tokens read
    price_out: float = 0.0  # of a million tokens written

    def key(self) -> str:
        """The key's value, or "". Raises EnvironmentUnready when its variable is unset or no header can hold it."""
        if not self.key_env:
            return ""
        value = os.environ.get(self.key_env, "").strip()
        if not value:
            at = shown(self.endpoints[0][0])
            raise EnvironmentUnready(f"the judge at {at} needs the environment variable {self.key_env}")
        if not (value.isascii() and value.isprintable()):
            raise EnvironmentUnready(f"{self.key_env} holds characters no key has; set it to the key alone")
        return value


def read_options(params: JudgeParams, mode: str = "turn") -> Options:
    """`mode` is the method's `judge_mode`. Raises ParamsError for an address that cannot be used."""
    return Options(
        endpoints=_endpoints(params.base_url, params.endpoints),
        model=params.model,
        key_env=params.key_env,
        temperature=params.temperature,
        top_p=params.top_p,
        max_tokens=params.max_tokens,
        timeout_s=params.timeout_s,
        attempts=params.attempts,
        concurrency=params.concurrency,
        mode=mode,
        audit=params.audit,
        audit_seed=params.audit_seed,
        cache=params.cache,
        price_in=params.price_in,
        price_out=params.price_out,
    )


def chat_url(base_url: str) -> str:
    """The address of chat completions. Raises ParamsError unless it is http or https with a host."""
    url = base_url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ParamsError(f"the judge's address {shown(base_url)!r} must be such as http://localhost:8000/v1")
    return url


def shown(url: str) -> str:
    """An address for people: without a user name and password, and without its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(unreadable)"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def host(url: str) -> str:
    """Who an address names, for records: host and port alone, since a path may hold a key too."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _endpoints(base_url: str, more: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """`base_url` with weight 1, then the others; an address named twice keeps the weight given last."""
    weights = {chat_url(base_url): 1.0} if base_url or not more else {}
    for url, weight in more.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < 1e6:
            raise ParamsError(f"judge.endpoints.{shown(url)} is {weight!r}, must be a weight above 0")
        weights[chat_url(url)] = float(weight)
    return tuple(weights.items())
