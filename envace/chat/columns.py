"""The columns of a token log's row.

Flows in: ids with who wrote them. Flows out: frozen rows of ids, mask, log-probabilities and writers.
Invariant: the columns of a row have one length at any time; the mask is 1 exactly where a role sampled the token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from envace.chat.append_only import Restart
from envace.types import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """A stretch of the stream, [T] tokens: `prompt` of them stand before the first sampled one."""

    ids: tuple[int, ...]  # [T]
    mask: tuple[int, ...]  # [T] 1 where the policy wrote the token
    logprobs: tuple[float, ...]  # [T] 0 where the mask is 0; NaN where the policy told none
    writers: tuple[Role | None, ...]  # [T] the role that sampled the token, None for what it was shown
    prompt: int
    restart: Restart | None = None  # why this row began; None for the first

    def __post_init__(self) -> None:
        """Raises ValueError when the columns differ in length."""
        if len({len(self.ids), len(self.mask), len(self.logprobs), len(self.writers)}) > 1:
            raise ValueError("the columns of a row differ in length")

    def response(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """(ids, mask, log-probabilities) behind the prompt; no log-probabilities when one is unknown."""
        at, known = self.prompt, not any(map(math.isnan, self.logprobs))
        return self.ids[at:], self.mask[at:], self.logprobs[at:] if known else ()


@dataclass(slots=True)
class Columns:
    """A growing row. `grow` is the only way in, so no column can get ahead of another."""

    restart: Restart | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    writers: list[Role | None] = field(default_factory=list)
    prompt: int = -1  # -1 until the first sampled token
    sampled_at: int = 0  # where the newest generation begins

    def grow(self, ids: Sequence[int], logprobs: Sequence[float] = (), role: Role | None = None) -> None:
        """Append tokens to every column. `role` sampled them; without one they were shown.

        Raises ValueError, and appends nothing, when ids and log-probabilities differ in length.
        """
        filler = 0.0 if role is None else math.nan
        ids, values = list(ids), list(logprobs) or [filler] * len(ids)
        if len(values) != len(ids):
            raise ValueError(f"{len(values)} log-probabilities for {len(ids)} tokens")
        if role is not None:
            self.sampled_at = len(self.ids)
            self.prompt = self.sampled_at if self.prompt < 0 else self.prompt
        self.ids += ids
        self.logprobs += values
        self.writers += [role] * len(ids)

    def frozen(self) -> LogRow:
        """The row as it stands."""
        return LogRow(
            ids=tuple(self.ids),
            mask=tuple(int(writer is not None) for writer in self.writers),
            logprobs=tuple(self.logprobs),
            writers=tuple(self.writers),
            prompt=self.prompt,
            restart=self.restart,
        )
