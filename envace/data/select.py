"""Which rows are too easy to train on.

Flows in: `data.select`, a row's id and size. Flows out: whether the row is dropped. Invariant: the decision
depends on the ratios, the seed, the id and the row alone, never on other rows or their order.

Rows that their source set aside for evaluation are never thinned. `data.select` maps a kind of number to
{number: share of rows with it that are dropped}; a row that several ratios meet is kept with the product of
(1 - ratio). Empty keeps every row. The published selection, which thins a pool of 22,000 rows to about 8,000,
is

    most_steps: {1: 0.3}          assistant messages of the longest turn
    steps: {1: 0.2, 2: 0.3}       assistant messages
    tools: {1: 0.7, 2: 0.4}       tools offered
    tools_used: {1: 0.4}          tools called, each once
    turns: {1: 0.4}               user messages
    calls: {1: 0.3, 2: 0.3}       tool calls
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from envace.data.sizes import RowSize
from envace.errors import ParamsError
from envace.types import JSON

KINDS = ("most_steps", "steps", "tools", "tools_used", "turns", "calls")

Ratios = dict[str, dict[int, float]]


def read_ratios(given: Mapping[str, JSON]) -> Ratios:
    """`data.select` as numbers. Raises ParamsError naming the first part that cannot be used."""
    ratios: Ratios = {}
    for kind, shares in given.items():
        if kind not in KINDS:
            raise ParamsError(f"data.select names {kind!r}, must be one of {', '.join(KINDS)}")
        if not isinstance(shares, Mapping):
            raise ParamsError(
                f"data.select.{kind} is {shares!r}, must map a number to a share, such as {{1: 0.3}}"
            )
        for number, share in shares.items():
            is_share = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= 1
            if not str(number).isdecimal() or not is_share:
                raise ParamsError(
                    f"data.select.{kind} maps {number!r} to {share!r}, must map a whole number to a share "
                    "from 0 to 1"
                )
        ratios[kind] = {int(number): float(share) for number, share in shares.items()}
    return ratios


def dropped(ratios: Ratios, seed: int, uuid: str, size: RowSize) -> bool:
    """Whether a row is left out."""
    return bool(ratios) and share_of(f"{seed}/select/{uuid}") >= keep_share(ratios, size)


def keep_share(ratios: Ratios, size: RowSize) -> float:
    """The share of rows of this size that are kept."""
    return math.prod(1 - shares.get(getattr(size, kind), 0.0) for kind, shares in ratios.items())


def share_of(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
