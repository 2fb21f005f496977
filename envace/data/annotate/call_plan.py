"""Where a row stands: what is known of it, and what is to be asked next.

A pure function of sample, journal, prompts and options; the run and the files it writes use the same one, so
a row cannot be counted as one thing and written as another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum

from envace.data.annotate.arguments import AnnotateOptions
from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.journal import CallRecord, Journal, call_key
from envace.data.annotate.questions import Prompts, Question
from envace.data.annotate.replies import Label, read_label, read_verdict

FILTERED = "llm_filter"
"""Why a row is rejected that a filter pass rejected."""


class RowOutcome(StrEnum):
    """What becomes of a row. Exactly one each."""

    ANNOTATED = "annotated"
    REJECTED = "rejected"  # by a rule or by a filter pass
    UNDECIDED = "undecided"  # no usable reply yet; asked again by the next run
    FAILED = "failed"  # the model refused, or its labels stayed faulty after one repair


@dataclass(frozen=True, slots=True)
class Ask:
    """A call of a row."""

    call: str
    """filter:low:0 | label:high | repair:high:<hash of the label it mends>"""
    key: str
    prompt: str
    """Its version."""
    mends: tuple[str, tuple[str, ...]] = ("", ())
    """Of a repair: the reply, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """What is known of a row."""

    outcome: RowOutcome
    reason: str = ""
    call: str = ""
    """The one that settled it, or is to."""
    detail: str = ""
    label: Label = Label()
    repaired: bool = False
    ask: Ask | None = None
    """The open call of an undecided row; of a failed one, where another attempt would begin."""


@dataclass(frozen=True)
class CallPlan:
    """`CallPlan(options, prompts, journal).state(sample)`"""

    options: AnnotateOptions
    prompts: Prompts
    journal: Journal

    def state(self, sample: RawSample) -> RowResult:
        """What all calls so far say, up to the first that is open."""
        for name in self.options.pass_names:
            ask = self._ask(sample, name)
            record = self.journal.get(ask.key)
            if (unanswered := _unanswered(ask, record)) is not None:
                return unanswered
            accepts, reason = read_verdict(record["reply"])
            if accepts is None:
                return _undecided(ask, "reply_cut_off" if record["finish"] == "length" else reason)
            if not accepts:
                return RowResult(RowOutcome.REJECTED, FILTERED, ask.call, reason)
        return self._labelled(sample)

    def _labelled(self, sample: RawSample) -> RowResult:
        """The label, or its one repair."""
        first = ask = self._ask(sample, self.options.label_name)
        for repaired in (False, True):
            record = self.journal.get(ask.key)
            if (unanswered := _unanswered(ask, record)) is not None:
                return unanswered
            label = read_label(record["reply"], sample, record["finish"])
            if not label.faults:
                return RowResult(RowOutcome.ANNOTATED, call=ask.call, label=label, repaired=repaired)
            if not repaired:
                repair = self._ask(sample, self._repair(record["reply"]))
                ask = replace(repair, mends=(record["reply"], label.faults))
        return RowResult(RowOutcome.FAILED, "faulty_label", ask.call, "; ".join(label.faults), ask=first)

    def records(self, sample: RawSample) -> list[CallRecord]:
        """Every record of the row's calls under these prompts and this model, tries that came to nothing
        included."""
        names = [*self.options.pass_names, self.options.label_name]
        found = [r for name in names for r in self.journal.all(self._ask(sample, name).key)]
        labels = [r for r in found if r["call"] == self.options.label_name and r["reply"] is not None]
        repairs = dict.fromkeys(self._repair(r["reply"]) for r in labels)
        return found + [r for name in repairs for r in self.journal.all(self._ask(sample, name).key)]

    def question(self, sample: RawSample, ask: Ask) -> Question:
        """What the call asks."""
        kind, effort = ask.call.split(":")[:2]
        return self.prompts.question(kind, sample, effort, *ask.mends)

    def _ask(self, sample: RawSample, call: str) -> Ask:
        p = self.prompts
        version = p.filter_version if call.startswith("filter:") else p.label_version
        return Ask(call, call_key(sample.key, call, self.options.model, version), version)

    def _repair(self, reply: str) -> str:
        """A repair belongs to the very label it mends."""
        mended = hashlib.sha256(json.dumps(reply).encode()).hexdigest()[:12]
        return f"repair:{self.options.label_effort}:{mended}"


def _undecided(ask: Ask, why: str) -> RowResult:
    return RowResult(RowOutcome.UNDECIDED, why, ask.call, ask=ask)


def _unanswered(ask: Ask, record: CallRecord | None) -> RowResult | None:
    """What it means for the row that a call has brought no reply; None where it has."""
    if record is None:
        return _undecided(ask, "not_asked")
    if record["reply"] is not None:
        return None
    if record["fault"].startswith("refused"):
        return RowResult(RowOutcome.FAILED, record["fault"], ask.call, ask=ask)
    return _undecided(ask, record["fault"])
