"""What a run came to, in numbers: the body of report.json.

read = annotated + rejected + undecided + failed + not_sampled. Numbers come from the source and the journal
alone, so the same journal gives the same report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.journal import CallRecord
from envace.data.annotate.next_call import RowOutcome, RowResult
from envace.types import JSON

SUMS = ("requests", "read", "written", "seconds", "usd")


@dataclass
class Tally:
    """Filled row by row; `report()` at the end."""

    read: int = 0
    not_sampled: int = 0
    """Pass the rules, but --limit takes others."""
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=lambda: {o.value: Counter() for o in RowOutcome})
    rejecting: Counter[str] = field(default_factory=Counter)
    """Rows rejected, by filter pass."""
    labels: Counter[str] = field(default_factory=Counter)
    focus: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    calls: dict[str, Counter[str]] = field(default_factory=dict)

    def row(self, outcome: RowOutcome, reason: str = "", call: str = "") -> None:
        """One row and what became of it."""
        self.read += 1
        self.outcomes[outcome] += 1
        if reason:
            self.reasons[outcome][reason] += 1
        if outcome is RowOutcome.REJECTED and call:
            self.rejecting[call] += 1

    def annotated(self, sample: RawSample, result: RowResult) -> None:
        """The labels of an annotated row."""
        items = [item for turn in result.label.turns for item in turn]
        evidence = [part for item in items for part in item["evidence"]]
        self.labels.update(
            turns=len(result.label.turns),
            items=len(items),
            evidence=len(evidence),
            verbatim_evidence=sum(sample.verbatim(part) for part in evidence),
            required=sum(item["required_for_next_turn"] for item in items),
            renormalised_turns=result.label.renormalised,
            repaired_rows=result.repaired,
        )
        self.focus.update(item["focus_on"] for item in items)
        licence = sample.about.get("license") or sample.about.get("licence") or "not stated"
        self.licences[str(licence)] += 1

    def called(self, records: list[CallRecord]) -> None:
        """The calls of a row."""
        for r in records:
            kind, replied = r["call"].split(":")[0], r["reply"] is not None
            sums = self.calls.setdefault(r["call"] if kind == "filter" else kind, Counter())
            sums.update({key: r[key] or 0 for key in SUMS})
            sums.update(
                calls=1,
                replies=replied,
                unstructured=replied and not r["structured"],
                without_tokens=replied and None in (r["read"], r["written"]),
                without_price=replied and r["usd"] is None,
            )

    def report(self) -> dict[str, JSON]:
        """Plain data. Raises AssertionError where rows are missing."""
        counts = {**{o.value: self.outcomes[o] for o in RowOutcome}, "not_sampled": self.not_sampled}
        if sum(counts.values()) != self.read:
            raise AssertionError(f"{self.read} rows read, but {counts}")
        return {
            "counts": {"read": self.read, **counts},
            "reasons": {o: dict(sorted(c.items())) for o, c in self.reasons.items() if c},
            "rejected_by_pass": dict(sorted(self.rejecting.items())),
            "labels": {**dict(sorted(self.labels.items())), "focus_on": dict(sorted(self.focus.items()))},
            "licences": dict(sorted(self.licences.items())),
            "calls": {name: _calls(sums) for name, sums in sorted(self.calls.items())},
            "total": _calls(sum(self.calls.values(), Counter())),
        }


def _calls(sums: Counter[str]) -> dict[str, JSON]:
    known = sums["replies"] and not sums["without_price"]
    return {
        "calls": sums["calls"],
        "replies": sums["replies"],
        "requests": sums["requests"],
        "retries": sums["requests"] - sums["calls"],
        "unstructured_replies": sums["unstructured"],
        "tokens_read": sums["read"],
        "tokens_written": sums["written"],
        "replies_without_tokens": sums["without_tokens"],
        "seconds": round(sums["seconds"], 3),
        "usd": round(sums["usd"], 6) if known else None,
    }
