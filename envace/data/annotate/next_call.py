"""Where a row stands: what is known of it, and what is to be asked next.

Flows in: a sample and the journal. Flows out: the next `Ask`, or a `RowResult`. Invariant: a pure function of
sample, journal, prompts and options; the run and the files it writes use the same one, so a row cannot be
counted as one thing and written as another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.journal import CallRecord, Journal, call_key
from envace.data.annotate.options import AnnotateOptions
from envace.data.annotate.questions import Prompts, Question
from envace.data.annotate.replies import Label, State, read_label, read_verdict


class RowOutcome(StrEnum):
    """What becomes of a row. Exactly one each."""

    ANNOTATED = "annotated"
    REJECTED = "rejected"  # by a rule or by a filter pass
    UNDECIDED = "undecided"  # no usable reply yet; asked again by the next run
    FAILED = "failed"  # the model refused, or its labels stayed faulty after one repair


@dataclass(frozen=True, slots=True)
class Ask:
    """The next call of a row, and why it is open where it was made before."""

    call: str  # filter:low:0 | label:high | repair:high:<hash of the label it mends>
    key: str
    prompt: str  # version
    question: Callable[[], Question]
    why: str = "not_asked"


@dataclass(frozen=True, slots=True)
class RowResult:
    """What is settled about a row."""

    outcome: RowOutcome
    reason: str = ""
    call: str = ""  # the one that settled it
    detail: str = ""
    label: Label = Label()
    repaired: bool = False
    again: Ask | None = None  # of a failed row: where another attempt would begin


@dataclass(frozen=True)
class Course:
    """`Course(options, prompts, journal).at(sample)`"""

    options: AnnotateOptions
    prompts: Prompts
    journal: Journal

    def at(self, sample: RawSample) -> Ask | RowResult:
        """The first call that is still open, or what all calls together say."""
        for name in self.options.pass_names:
            ask = self._ask(sample, name)
            if (record := self.journal.get(ask.key)) is None:
                return ask
            if (settled := self._filtered(ask, record)) is not None:
                return settled
        return self._labelled(sample)

    def asked(self, sample: RawSample) -> list[CallRecord]:
        """Every record of the row's calls under these prompts and this model, tries that came to nothing
        included."""
        records = [r for name in self.options.pass_names for r in self.journal.all(self._key(sample, name))]
        labels = self.journal.all(self._key(sample, self.options.label_name))
        repairs = {
            self._key(sample, self._repair(r["reply"])): None for r in labels if r["reply"] is not None
        }
        return [*records, *labels, *(r for key in repairs for r in self.journal.all(key))]

    def _filtered(self, ask: Ask, record: CallRecord) -> Ask | RowResult | None:
        if (open_or_failed := _without_reply(ask, record)) is not None:
            return open_or_failed
        verdict = read_verdict(record["reply"])
        if verdict.state is State.UNDECIDED:
            return replace(ask, why="reply_cut_off" if record["finish"] == "length" else verdict.reason)
        if verdict.state is State.REJECTED:
            return RowResult(RowOutcome.REJECTED, "llm_filter", ask.call, verdict.reason)
        return None

    def _labelled(self, sample: RawSample) -> Ask | RowResult:
        """The label, or its one repair."""
        first = ask = self._ask(sample, self.options.label_name)
        for repaired in (False, True):
            if (record := self.journal.get(ask.key)) is None:
                return ask
            if (open_or_failed := _without_reply(ask, record)) is not None:
                return open_or_failed
            label = read_label(record["reply"], sample, record["finish"])
            if not label.faults:
                return RowResult(RowOutcome.ANNOTATED, call=ask.call, label=label, repaired=repaired)
            if not repaired:
                ask = self._ask(sample, self._repair(record["reply"]), record["reply"], label.faults)
        return RowResult(RowOutcome.FAILED, "faulty_label", ask.call, "; ".join(label.faults), again=first)

    def _key(self, sample: RawSample, call: str) -> str:
        return call_key(sample.key, call, self.options.model, self._version(call))

    def _version(self, call: str) -> str:
        return self.prompts.filter_version if call.startswith("filter:") else self.prompts.label_version

    def _repair(self, reply: str) -> str:
        """A repair belongs to the very label it mends."""
        mended = hashlib.sha256(json.dumps(reply).encode()).hexdigest()[:12]
        return f"repair:{self.options.label_effort}:{mended}"

    def _ask(self, sample: RawSample, call: str, reply: str = "", faults: tuple[str, ...] = ()) -> Ask:
        kind, effort = call.split(":")[:2]
        question = partial(self.prompts.question, kind, sample, effort, reply, faults)
        return Ask(call, self._key(sample, call), self._version(call), question)


def _without_reply(ask: Ask, record: CallRecord) -> Ask | RowResult | None:
    """What a call that brought no reply means; None where it brought one."""
    if record["reply"] is not None:
        return None
    if record["fault"].startswith("refused"):
        return RowResult(RowOutcome.FAILED, record["fault"], ask.call, again=ask)
    return replace(ask, why=record["fault"])
