"""How far a response holds what REHEARSE was shown; a share of nothing is None, never 0 or 1.

A *leaf* is a scalar (or an empty object or list) with its path. A leaf of the truth is *grounded* when its
value stands in what REHEARSE was shown (records, history, the call) as a JSON value of its own: that part of
the truth could be copied, the rest could only be known or guessed.
"""

from __future__ import annotations

import json
import re
from collections import Counter

from envace.chat.text import dumps
from envace.chat.transcript import leaves
from envace.types import JSON


def grounded_share(truth: JSON, shown: str) -> float | None:
    """Share of the truth's leaves that are grounded in the text; None for a truth without leaves."""
    found = [occurs(json.loads(value), shown) for _, value in leaves(truth)]
    return sum(found) / len(found) if found else None


def grounded(said: JSON, truth: JSON, shown: str) -> float | None:
    """Of the truth's grounded leaves, the share the response has at the same path; None without any."""
    wanted = Counter(leaf for leaf in leaves(truth) if occurs(json.loads(leaf[1]), shown))
    return (wanted & Counter(leaves(said))).total() / wanted.total() if wanted else None


def occurs(value: JSON, shown: str) -> bool:
    """Whether a value stands in a text as a JSON value of its own: no key, no part of a longer one."""
    if isinstance(value, str):
        tokens = {dumps(value), json.dumps(value)}  # with and without escaped letters
        return any(re.search(rf"(?<!\\){re.escape(t)}(?!\s*:)", shown) for t in tokens)
    return re.search(rf'(?<![\w.\-"]){re.escape(dumps(value))}(?![\w.\-"])', shown) is not None
