"""What one annotation run was asked to do.

Flows in: values of the command line. Flows out: `Options`, checked.
Invariant: nothing here is a secret; `key_env` names the variable that holds the key, never the key.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from envace.data.annotate.source import Source
from envace.data.annotate.worth import Staged
from envace.data.rules import Options as RuleOptions
from envace.errors import EnvironmentUnready, ParamsError

EFFORTS = ("none", "minimal", "low", "medium", "high")  # none: the field is not sent
PASSES = ("low", "low", "medium", "medium", "high", "high")


@dataclass(frozen=True, kw_only=True)
class Prices:
    """USD a million tokens."""

    read: float
    write: float

    def usd(self, read: int, write: int) -> float:
        """What so many tokens read and written cost."""
        return (read * self.read + write * self.write) / 1e6


@dataclass(frozen=True, kw_only=True)
class Options:
    """`Options(source=source_at(Path("raw")), out=Path("out"), base_url="http://127.0.0.1:8000/v1", model="m")`."""

    source: Source
    out: Path
    base_url: str
    model: str
    key_env: str = ""
    passes: tuple[str, ...] = PASSES  # reasoning effort of each filter pass, in order
    label_effort: str = "high"
    limit: int = 0  # rows to send to the model, chosen by seed and id; 0 is all
    staged: Staged | None = None  # leave out what staging would, before anything is paid
    rules: RuleOptions = RuleOptions()
    workers: int = 1  # processes that hold rows to the rules
    seed: int = 7  # of what `limit` takes and of the spot check
    concurrency: int = 16
    attempts: int = 6  # requests a call may take where the server is busy or broken
    timeout_s: float = 600.0  # of one request
    max_tokens: int = 16_000  # of one reply, its reasoning included
    temperature: float | None = None  # None leaves it to the server
    plain: bool = False  # never ask for structured output
    prices: Prices | None = None
    budget_usd: float = math.inf  # no new call is made once the run has cost this
    retry_failed: bool = False
    spot: int = 20  # rows on the page for reading
    prompts: Path | None = None  # a folder of other prompts; None takes those of the package

    def __post_init__(self) -> None:
        check_url(self.base_url)
        unknown = [e for e in (*self.passes, self.label_effort) if e not in EFFORTS]
        if unknown:
            raise ParamsError(f"a reasoning effort is {unknown[0]!r}; use a list out of {', '.join(EFFORTS)}")
        if not self.model.strip():
            raise ParamsError("the model has no name; give --model as the server lists it")
        if math.isfinite(self.budget_usd) and not self.prices:
            raise ParamsError("--budget needs prices to count with; add --price-in and --price-out")

    @property
    def pass_names(self) -> tuple[str, ...]:
        """`filter:low:0, filter:low:1, filter:high:0`: a pass keeps its name when others come or go."""
        seen: Counter[str] = Counter()
        names = []
        for effort in self.passes:
            names.append(f"filter:{effort}:{seen[effort]}")
            seen[effort] += 1
        return tuple(names)

    @property
    def label_name(self) -> str:
        """`label:high`"""
        return f"label:{self.label_effort}"

    def key(self) -> str:
        """The endpoint's key from the environment; empty where none is needed. Raises EnvironmentUnready."""
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise EnvironmentUnready(
                f"the endpoint's key is not set; put it into the environment variable {self.key_env}"
            )
        if not (key.isascii() and key.isprintable()):
            raise EnvironmentUnready(
                f"the value of {self.key_env} holds characters no key has; set it again from its source"
            )
        return key


def check_url(url: str) -> None:
    """Raises ParamsError on an address no request could go to, or one that carries a password."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise ParamsError(f"--base-url {url!r} is no http address; give one such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise ParamsError("--base-url carries a key or query; put the key into a variable named by --key-env")


def chat_url(base_url: str) -> str:
    """The address of chat completions; a base without a path gets `/v1`."""
    base = base_url.rstrip("/").removesuffix("/chat/completions")
    return f"{base}{'' if urlsplit(base).path else '/v1'}/chat/completions"
