"""What a step's or a stage's judging came to, flat.

Flows in: verdicts, of whichever processes judged. Flows out: `{name: float}`.
Invariant: a name has exactly one slash; sums are over the verdicts given, so a turn whose episode was cancelled is
on the judge's own bill alone. The counts of requests are there only where a server or its cache was asked.

judge/verdicts yes no unscored     answers; unscored_<reason> each reason that occurs, `judge_` left out
judge/requests retries             sent to servers; of them after a question's first
judge/timed_out unreachable malformed refused   attempts without a usable answer, a later one may have brought it
judge/cached tokens seconds cost   verdicts the cache knew; what the others took, audits apart
judge/audited audit_agreement audit_kappa audit_tokens audit_cost   of items answered both ways
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from envace.judge.audit import Agreement
from envace.types import Answer, Verdict

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
    found = {**_answers(verdicts), **(_asked(verdicts) if any(map(_was_asked, verdicts)) else {})}
    return {f"judge/{name}": float(value) for name, value in (found | _audits(verdicts)).items()}


def _was_asked(v: Verdict) -> bool:
    return bool(v.requests or v.cached or v.faults)


def _answers(verdicts: Sequence[Verdict]) -> dict[str, float]:
    answers = Counter(v.answer.value for v in verdicts)
    lost = Counter(_short(v.reason) for v in verdicts if v.answer is Answer.UNSCORED)
    return {
        "verdicts": len(verdicts),
        **{answer.value: answers[answer.value] for answer in Answer},
        **{f"unscored_{reason}": n for reason, n in lost.items()},
    }


def _short(reason: str) -> str:
    """A reason's name, without its detail."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", reason.partition(":")[0]).strip("_")
    return name[:LONGEST_REASON].removeprefix("judge_") or "unnamed"


def _asked(verdicts: Sequence[Verdict]) -> dict[str, float]:
    faults: Counter[str] = Counter()
    for v in verdicts:
        faults.update(v.faults)
    return {
        "requests": sum(v.requests for v in verdicts),
        "retries": sum(v.retries for v in verdicts),
        **{name: faults[reason] for reason, name in FAULTS.items()},
        "cached": sum(v.cached for v in verdicts),
        "tokens": sum(v.cost_tokens for v in verdicts),
        "seconds": sum(v.seconds for v in verdicts),
        "cost": sum(v.cost for v in verdicts),
    }


def _audits(verdicts: Sequence[Verdict]) -> dict[str, float]:
    both = [(v, v.audit) for v in verdicts if v.audit is not None]
    if not both:
        return {}
    agreed = Agreement()
    agreed.count([v.answer for v, _ in both], [a.answer for _, a in both])
    shares = {"audit_agreement": agreed.share, "audit_kappa": agreed.kappa}
    return {
        "audited": len(both),
        **{name: value for name, value in shares.items() if value is not None},
        "audit_tokens": sum(a.cost_tokens for _, a in both),
        "audit_cost": sum(a.cost for _, a in both),
    }
