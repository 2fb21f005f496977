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
            record, unanswered = self._answer(ask)
            if unanswered:
                return unanswered
            accepts, reason = read_verdict(record["reply"])
            if accepts is None:
                reason = "reply_cut_off" if record["finish"] == "length" else reason
                return RowResult(RowOutcome.UNDECIDED, reason, ask.call, ask=ask)
            if not accepts:
                return RowResult(RowOutcome.REJECTED, FILTERED, ask.call, reason)
        first = ask = self._ask(sample, self.options.label_name)
        for repaired in (False, True):
            record, unanswered = self._answer(ask)
            if unanswered:
                return unanswered
            label = read_label(record["reply"], sample, record["finish"])
            if not label.faults:
                return RowResult(RowOutcome.ANNOTATED, call=ask.call, label=label, repaired=repaired)
            if not repaired:  # a repair belongs to the very label it mends
                mended = hashlib.sha256(json.dumps(record["reply"]).encode()).hexdigest()[:12]
                repair = self._ask(sample, f"repair:{self.options.label_effort}:{mended}")
                ask = replace(repair, mends=(record["reply"], label.faults))
        return RowResult(RowOutcome.FAILED, "faulty_label", ask.call, "; ".join(label.faults), ask=first)

    def next_ask(self, at: RowResult) -> Ask | None:
        """The call to make; None where the row is settled."""
        settled = at.outcome is RowOutcome.FAILED and not self.options.retry_failed
        return None if settled else at.ask

    def records(self, sample: RawSample) -> list[CallRecord]:
        """Every record of the row's calls under these prompts and this model, tries that came to nothing
        included."""
        o, p = self.options, self.prompts
        names, repair = {*o.pass_names, o.label_name}, f"repair:{o.label_effort}:"
        return [
            record
            for record in self.journal.of_row(sample.key)
            if record["model"] == o.model
            and record["prompt"] in (p.filter_version, p.label_version)
            and (record["call"] in names or record["call"].startswith(repair))
        ]

    def question(self, sample: RawSample, ask: Ask) -> Question:
        """What the call asks."""
        kind, effort = ask.call.split(":")[:2]
        return self.prompts.question(kind, sample, effort, *ask.mends)

    def _ask(self, sample: RawSample, call: str) -> Ask:
        p = self.prompts
        version = p.filter_version if call.startswith("filter:") else p.label_version
        return Ask(call, call_key(sample.key, call, self.options.model, version), version)

    def _answer(self, ask: Ask) -> tuple[CallRecord, RowResult | None]:
        """A call's record, and what it means for the row where it brought no reply."""
        record = self.journal.get(ask.key)
        if record is None:
            return {}, RowResult(RowOutcome.UNDECIDED, "not_asked", ask.call, ask=ask)
        if record["reply"] is not None:
            return record, None
        refused = record["fault"].startswith("refused")
        outcome = RowOutcome.FAILED if refused else RowOutcome.UNDECIDED
        return record, RowResult(outcome, record["fault"], ask.call, ask=ask)
