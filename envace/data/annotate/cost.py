"""What a run would take, told before anything is paid.

Flows in: the triage, and where each of its samples stands. Flows out: a `Preview`, and how it reads.
Invariant: calls are an upper bound, since nobody knows who will be rejected; tokens are estimates and say so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from envace.data.annotate.course import Course, Outcome, Result
from envace.data.annotate.dialogue import Sample
from envace.data.annotate.options import Options
from envace.data.annotate.rows import Triage

CHARACTERS_PER_TOKEN = 3.5  # of English prose mixed with JSON
WRITTEN = {
    "none": 200,
    "minimal": 300,
    "low": 600,
    "medium": 1800,
    "high": 5000,
}  # tokens a reply, thought included
WRITTEN_PER_TURN = 900  # of checklists, beside that


@dataclass
class Preview:
    """Rows, the calls they may take, and estimated tokens."""

    read: int
    not_sampled: int  # pass the rules, but --limit takes others
    left_out: dict[str, int]  # by the first reason
    hits: dict[str, int]  # by every reason
    settled: Counter[str] = field(default_factory=Counter)  # outcome -> rows that need no call
    rows: int = 0  # that need calls
    calls: int = 0  # at most
    tokens_read: int = 0
    tokens_written: int = 0

    def text(self, options: Options) -> str:
        """For people, a line a fact."""
        out = [self._source(), self._hits(), self._settled(), self._calls(options)]
        return "\n".join(line for line in out if line)

    def _source(self) -> str:
        passed = self.read - sum(self.left_out.values())
        more = f", {passed - self.not_sampled:,} of them drawn (--limit)" if self.not_sampled else ""
        left = f"; left out: {_counted(self.left_out)}" if self.left_out else ""
        return f"rows: {self.read:,} read, {passed:,} pass the rules{more}{left}"

    def _hits(self) -> str:
        if self.hits == self.left_out:
            return ""
        return f"faults, of which a row may have several: {_counted(self.hits)}"

    def _settled(self) -> str:
        known = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(self.settled.items()))
        return f"settled by the journal: {known}" if known else ""

    def _calls(self, options: Options) -> str:
        if not self.calls:
            return "calls: none are open"
        passes = "1 filter pass" if len(options.passes) == 1 else f"{len(options.passes)} filter passes"
        lines = [
            f"calls: at most {self.calls:,} for {self.rows:,} rows ({passes}, one label each; "
            "a rejection saves a row's later calls, a faulty label costs one repair)",
            f"tokens: about {self.tokens_read:,} read and {self.tokens_written:,} written (estimated)",
        ]
        if options.prices:
            usd = options.prices.usd(self.tokens_read, self.tokens_written)
            p = options.prices
            lines.append(
                f"cost: at most about {usd:,.2f} USD, at {p.read:g} read and {p.write:g} written a million tokens"
            )
        else:
            lines.append("cost: unknown without --price-in and --price-out")
        return "\n".join(lines)


def _counted(reasons: dict[str, int]) -> str:
    """`3 role_order, 1 bad_json`, the most frequent first."""
    return ", ".join(f"{n:,} {reason}" for reason, n in sorted(reasons.items(), key=lambda x: -x[1]))


def preview(course: Course, triage: Triage) -> Preview:
    """Go through all samples once; nothing is asked."""
    found = Preview(len(triage.rows), triage.not_sampled, triage.reasons(), dict(sorted(triage.hits.items())))
    for sample in triage.samples():
        at = course.at(sample)
        if isinstance(at, Result) and not (at.outcome is Outcome.FAILED and course.options.retry_failed):
            found.settled[at.outcome.value] += 1
            continue
        call = at.again.call if isinstance(at, Result) and at.again else at.call
        found.rows += 1
        for name in _open(call, course.options):
            _count(found, name, sample, course)
    return found


def _open(call: str, options: Options) -> tuple[str, ...]:
    """The call and all that may come after it."""
    order = (*options.pass_names, options.label_name)
    return order[order.index(call) :] if call in order else (call,)


def _count(found: Preview, call: str, sample: Sample, course: Course) -> None:
    kind, effort = call.split(":")[:2]
    ask = course.prompts.ask_filter if kind == "filter" else course.prompts.ask_label
    shown = sum(len(m["content"]) for m in ask(sample, effort).messages)
    found.calls += 1
    found.tokens_read += round(shown / CHARACTERS_PER_TOKEN)
    found.tokens_written += WRITTEN[effort] + (0 if kind == "filter" else WRITTEN_PER_TURN * sample.turns)
