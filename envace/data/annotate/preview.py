"""What a run would take, told before anything is paid.

Calls are an upper bound, since nobody knows who will be rejected; tokens are estimates and say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.next_call import Course, RowOutcome, RowResult
from envace.data.annotate.options import AnnotateOptions
from envace.data.annotate.rows import Triage

CHARACTERS_PER_TOKEN = 3.5
"""Of English prose mixed with JSON."""
WRITTEN = {"none": 200, "minimal": 300, "low": 600, "medium": 1800, "high": 5000}
"""Tokens a reply by effort, thought included."""
WRITTEN_PER_TURN = 900
"""Of checklists, beside that."""


@dataclass
class Preview:
    """Rows, the calls they may take at most, and estimated tokens."""

    triage: Triage
    settled: Counter[str] = field(default_factory=Counter)
    """Rows that need no call, by outcome."""
    rows: int = 0
    """Rows that need calls."""
    calls: int = 0
    tokens_read: int = 0
    tokens_written: int = 0

    @classmethod
    def of(cls, course: Course, triage: Triage) -> Preview:
        """Go through all samples once; nothing is asked."""
        found, options = cls(triage), course.options
        order = (*options.pass_names, options.label_name)
        for sample in triage.samples():
            at = course.at(sample)
            if isinstance(at, RowResult) and not (at.outcome is RowOutcome.FAILED and options.retry_failed):
                found.settled[at.outcome.value] += 1
                continue
            call = at.again.call if isinstance(at, RowResult) and at.again else at.call
            found.rows += 1
            for name in order[order.index(call) :] if call in order else (call,):
                found._count(name, sample, course)
        return found

    def _count(self, call: str, sample: RawSample, course: Course) -> None:
        kind, effort = call.split(":")[:2]
        asked = course.prompts.question("filter" if kind == "filter" else "label", sample, effort)
        self.calls += 1
        self.tokens_read += round(sum(len(m["content"]) for m in asked.messages) / CHARACTERS_PER_TOKEN)
        self.tokens_written += WRITTEN[effort] + (0 if kind == "filter" else WRITTEN_PER_TURN * sample.turns)

    def text(self, options: AnnotateOptions) -> str:
        """For people, a line a fact."""
        left_out, hits = self.triage.reasons(), dict(sorted(self.triage.hits.items()))
        read, passed_over = len(self.triage.rows), self.triage.not_sampled
        passed = read - sum(left_out.values())
        drawn = f", {passed - passed_over:,} of them drawn (--limit)" if passed_over else ""
        left = f"; left out: {_counted(left_out)}" if left_out else ""
        out = [f"rows: {read:,} read, {passed:,} pass the rules{drawn}{left}"]
        if hits != left_out:
            out.append(f"faults, of which a row may have several: {_counted(hits)}")
        if self.settled:
            known = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(self.settled.items()))
            out.append(f"settled by the journal: {known}")
        return "\n".join(out + self._costs(options))

    def _costs(self, options: AnnotateOptions) -> list[str]:
        if not self.calls:
            return ["calls: none are open"]
        passes = "1 filter pass" if len(options.passes) == 1 else f"{len(options.passes)} filter passes"
        cost = "cost: unknown without --price-in and --price-out"
        if p := options.prices:
            usd = p.usd(self.tokens_read, self.tokens_written)
            cost = (
                f"cost: at most about {usd:,.2f} USD, at {p.read:g} read and {p.write:g} written a million "
                "tokens"
            )
        return [
            f"calls: at most {self.calls:,} for {self.rows:,} rows ({passes}, one label each; a rejection "
            "saves a row's "
            "later calls, a faulty label costs one repair)",
            f"tokens: about {self.tokens_read:,} read and {self.tokens_written:,} written (estimated)",
            cost,
        ]


def _counted(reasons: Mapping[str, int]) -> str:
    """`3 role_order, 1 bad_json`, the most frequent first."""
    return ", ".join(f"{n:,} {reason}" for reason, n in sorted(reasons.items(), key=lambda x: -x[1]))
