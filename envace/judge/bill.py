"""What judging has cost: requests, tokens, seconds, faults.

Flows in: how each question went and the usage each server states. Flows out: sums, and shares of them.
Invariant: shares add up to the whole; a number that no server can mean counts as unstated, never as a cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from envace.types import JSON

MOST_TOKENS = 10**9  # a server that states more for one call is lying


@dataclass(slots=True)
class Bill:
    """Of one question, one turn or one judge's life; tokens as the servers state them."""

    requests: int = 0
    retries: int = 0  # of the requests, those after a question's first
    tokens: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    unstated: int = 0  # completions without usage
    seconds: float = 0.0  # summed over requests that brought a completion
    answered: int = 0  # such requests
    slowest: float = 0.0  # the longest of them
    faults: Counter[str] = field(default_factory=Counter)  # attempts without a usable answer, by reason
    endpoint: str = ""  # host and port of the last that brought a completion

    def note(self, usage: JSON) -> None:
        """Add one completion's usage; numbers that cannot be counts are left out."""
        usage = usage if isinstance(usage, dict) else {}
        read, written = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        total = _count(usage.get("total_tokens")) or read + written
        self.tokens_in, self.tokens_out = self.tokens_in + read, self.tokens_out + written
        self.tokens += total
        self.unstated += not total

    def took(self, seconds: float, endpoint: str = "") -> None:
        """One completion came after so long."""
        self.seconds, self.answered = self.seconds + seconds, self.answered + 1
        self.slowest, self.endpoint = max(self.slowest, seconds), endpoint

    def add(self, other: Bill) -> None:
        """All of another bill."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.slowest = max(self.slowest, other.slowest)
        self.endpoint = other.endpoint or self.endpoint

    def split(self, parts: int) -> list[Bill]:
        """The bill in so many shares, as even as whole numbers can be; the faults are the first one's."""
        shares = [Bill(slowest=self.slowest, endpoint=self.endpoint) for _ in range(parts)]
        for name in SUMMED:
            whole = getattr(self, name)
            each, rest = (whole / parts, 0) if isinstance(whole, float) else divmod(whole, parts)
            for k, share in enumerate(shares):
                setattr(share, name, each + (k < rest))
        shares[0].faults.update(self.faults)
        return shares

    def price(self, price_in: float, price_out: float) -> float:
        """At prices of a million tokens read and written."""
        return (self.tokens_in * price_in + self.tokens_out * price_out) / 1e6


SUMMED = ("requests", "retries", "tokens", "tokens_in", "tokens_out", "unstated", "seconds", "answered")


def _count(value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= MOST_TOKENS else 0
