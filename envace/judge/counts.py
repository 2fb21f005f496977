"""What a step's or a stage's judging came to, flat: verdicts of whichever processes judged -> {name: float}.

A name has exactly one slash; sums are over the verdicts given, so a turn whose episode was cancelled is on
the judge's own bill alone. The counts of requests are there only where a server or its cache was asked.

judge/verdicts yes no unscored     answers; unscored_<reason> each reason that occurs, `judge_` left out
judge/requests retries             sent to servers; of them after a question's first
judge/timed_out unreachable malformed refused
                                   attempts without a usable answer, a later one may have brought it
judge/cached tokens seconds cost   verdicts the cache knew; what the others took, audits apart
judge/audited audit_agreement audit_kappa audit_tokens audit_cost   of items answered both ways
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from envace.types import Answer, Verdict

LONGEST_REASON = 60  # letters of a reason that stands in a name
FAULTS = {
    "timed_out": "timeout",
    "unreachable": "unreachable",
    "malformed": "malformed",
    "refused": "refused",
}


def judge_metrics(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Empty where nothing was judged."""
    verdicts = list(verdicts)
    if not verdicts:
        return {}
    answers = Counter(v.answer for v in verdicts)
    found: dict[str, float] = {"verdicts": len(verdicts), **{a.value: answers[a] for a in Answer}}
    lost = Counter(_short(v.reason) for v in verdicts if v.answer is Answer.UNSCORED)
    found |= {f"unscored_{reason}": n for reason, n in lost.items()}
    if any(v.requests or v.cached or v.faults for v in verdicts):
        found |= {name: sum(getattr(v, name) for v in verdicts) for name in ("requests", "retries")}
        found |= {
            name: sum(v.faults.get(f"judge_{reason}", 0) for v in verdicts) for name, reason in FAULTS.items()
        }
        found |= {
            "cached": sum(v.cached for v in verdicts),
            "tokens": sum(v.cost_tokens for v in verdicts),
            "seconds": sum(v.seconds for v in verdicts),
            "cost": sum(v.cost for v in verdicts),
        }
    if audited := [(v, v.audit) for v in verdicts if v.audit]:
        share, kappa = agreement((v.answer, audit.answer) for v, audit in audited)
        found["audited"] = len(audited)
        found |= {} if share is None else {"audit_agreement": share}
        found |= {} if kappa is None else {"audit_kappa": kappa}
        found["audit_tokens"] = sum(audit.cost_tokens for _, audit in audited)
        found["audit_cost"] = sum(audit.cost for _, audit in audited)
    return {f"judge/{name}": float(value) for name, value in found.items()}


def agreement(pairs: Iterable[tuple[Answer, Answer]]) -> tuple[float | None, float | None]:
    """Share of items answered alike among those both ways answered, and Cohen's kappa: (share - chance) /
    (1 - chance), chance from each way's own rate of yes. None where there are none, or chance is 1."""
    yes = [[answer is Answer.YES for answer in pair] for pair in pairs if Answer.UNSCORED not in pair]
    if not yes:
        return None, None
    share = sum(a == b for a, b in yes) / len(yes)
    a_rate, b_rate = (sum(column) / len(yes) for column in zip(*yes))
    chance = a_rate * b_rate + (1 - a_rate) * (1 - b_rate)
    return share, (share - chance) / (1 - chance) if chance < 1 else None


def _short(reason: str) -> str:
    """A reason's name, without its detail."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", reason.partition(":")[0]).strip("_")
    return name[:LONGEST_REASON].removeprefix("judge_") or "unnamed"
