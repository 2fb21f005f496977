"""What a step's or a stage's judging came to, flat.

Flows in: verdicts, of whichever processes judged. Flows out: `{name: float}`.
Invariant: a name has exactly one slash; sums are over the verdicts given, so a turn whose episode was
cancelled is on the judge's own bill alone. The counts of requests are there only where a server or its cache
was asked.

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
from collections.abc import Iterable, Sequence

from envace.judge.audit import Agreement
from envace.types import Answer, Audit, Verdict

LONGEST_REASON = 60  # letters of a reason that stands in a name
FAULTS = {
    "judge_timeout": "timed_out",
    "judge_unreachable": "unreachable",
    "judge_malformed": "malformed",
    "judge_refused": "refused",
}


def judge_metrics(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Empty where nothing was judged."""
    verdicts = list(verdicts)
    if not verdicts:
        return {}
    answers = Counter(v.answer.value for v in verdicts)
    lost = Counter(_short(v.reason) for v in verdicts if v.answer is Answer.UNSCORED)
    found = {
        "verdicts": len(verdicts),
        **{answer.value: answers[answer.value] for answer in Answer},
        **{f"unscored_{reason}": n for reason, n in lost.items()},
        **_asked([v for v in verdicts if v.requests or v.cached or v.faults], verdicts),
        **_audits([(v, v.audit) for v in verdicts if v.audit is not None]),
    }
    return {f"judge/{name}": float(value) for name, value in found.items()}


def _short(reason: str) -> str:
    """A reason's name, without its detail."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", reason.partition(":")[0]).strip("_")
    return name[:LONGEST_REASON].removeprefix("judge_") or "unnamed"


def _asked(asked: Sequence[Verdict], verdicts: Sequence[Verdict]) -> dict[str, float]:
    faults: Counter[str] = Counter()
    for v in asked:
        faults.update(v.faults)
    sums = {
        "requests": sum(v.requests for v in verdicts),
        "retries": sum(v.retries for v in verdicts),
        **{name: faults[reason] for reason, name in FAULTS.items()},
        "cached": sum(v.cached for v in verdicts),
        "tokens": sum(v.cost_tokens for v in verdicts),
        "seconds": sum(v.seconds for v in verdicts),
        "cost": sum(v.cost for v in verdicts),
    }
    return sums if asked else {}


def _audits(both: Sequence[tuple[Verdict, Audit]]) -> dict[str, float]:
    agreed = Agreement((v.answer, a.answer) for v, a in both)
    shares = {"audit_agreement": agreed.share, "audit_kappa": agreed.kappa}
    sums = {
        "audited": len(both),
        **{name: value for name, value in shares.items() if value is not None},
        "audit_tokens": sum(a.cost_tokens for _, a in both),
        "audit_cost": sum(a.cost for _, a in both),
    }
    return sums if both else {}
