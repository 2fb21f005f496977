"""When a step has too many episodes that nobody could score.

Flows in: the episodes of a step and the rate that is still endured. Flows out: nothing, or the error that ends the run.
Invariant: what counts is why an episode lacks a verdict, not what `unscored` makes of it: a reward of 0 for an outage is
no reward either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from envace.errors import UserError
from envace.types import Episode


class TooManyUnscored(UserError):
    """The judge, the policy's server or a source fails too often for the reward to mean anything."""


def check_unscored(episodes: Sequence[Episode], limit: float, step: int) -> None:
    """Raises TooManyUnscored when more than a share `limit` of the episodes is unscored; the rate itself is endured."""
    lost = [e for e in episodes if e.unscored]
    if len(lost) <= limit * len(episodes):
        return
    why, _ = Counter(e.unscored_reason or e.stop.value for e in lost).most_common(1)[0]
    raise TooManyUnscored(
        f"step {step}: {len(lost)} of {len(episodes)} episodes are unscored (most: {why}), more than "
        f"judge.max_unscored = {limit:g}"
    )
