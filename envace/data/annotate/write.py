"""The files a run leaves: annotated.jsonl, rejected.jsonl, unfinished.jsonl, spot.html, report.json.

Flows in: the triage, the samples and their course. Flows out: the files, in the order of the source.
Invariant: each file is whole or as it was; the report is written last and holds the checksums of the others;
the same source, options and journal give the same bytes."""

from __future__ import annotations

import hashlib
import heapq
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.journal import CallRecord
from envace.data.annotate.next_call import Course, RowOutcome, RowResult
from envace.data.annotate.page import page
from envace.data.annotate.rows import RejectedRow, Triage
from envace.data.annotate.tally import Tally
from envace.errors import EnvironmentUnready
from envace.io.files import replacing, sha256, write_text
from envace.types import JSON

FORMAT = 2
"""Of report.json."""
ANNOTATED, REJECTED, UNFINISHED = "annotated.jsonl", "rejected.jsonl", "unfinished.jsonl"
SPOT, REPORT = "spot.html", "report.json"


class Writer:
    """Deals rows out to the open files."""

    def __init__(self, course: Course, files: dict[str, TextIO]):
        self.course, self.files = course, files
        self.tally = Tally()
        self.lines: dict[str, int] = dict.fromkeys(files, 0)
        self.spot: list[tuple[str, dict[str, JSON], RawSample]] = []  # a heap: the smallest leaves first

    def left_out(self, row: RejectedRow) -> None:
        """A row no call was made for."""
        self.tally.row(RowOutcome.REJECTED, row.reason)
        self._line(REJECTED, row.line())

    def sample(self, sample: RawSample) -> None:
        """A candidate, whatever became of it."""
        at, records = self.course.at(sample), self.course.asked(sample)
        self.tally.called(records)
        if not isinstance(at, RowResult):
            at = RowResult(RowOutcome.UNDECIDED, at.why, at.call)
        self.tally.row(at.outcome, at.reason, at.call)
        if at.outcome is RowOutcome.ANNOTATED:
            self.tally.annotated(sample, at)
            row = annotated(sample, at, records, self.course)
            self._line(ANNOTATED, row)
            self._maybe_shown(row, sample)
        elif at.outcome is RowOutcome.REJECTED:
            about = {"where": sample.where, "uuid": sample.uuid, "reason": at.reason}
            self._line(REJECTED, {**about, "field": "messages", "message": at.detail, "call": at.call})
        else:
            about = {"where": sample.where, "uuid": sample.uuid, "outcome": at.outcome.value}
            self._line(UNFINISHED, {**about, "reason": at.reason, "call": at.call, "detail": at.detail})

    def _line(self, name: str, data: dict[str, JSON]) -> None:
        text = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace").decode()
        self.files[name].write(text + "\n")
        self.lines[name] += 1

    def _maybe_shown(self, row: dict[str, JSON], sample: RawSample) -> None:
        """Keep the rows with the highest hash of seed and id: random, yet the same every time."""
        options = self.course.options
        rank = hashlib.sha256(f"{options.seed}/{sample.key}".encode()).hexdigest()
        heapq.heappush(self.spot, (rank, row, sample))
        if len(self.spot) > options.spot:
            heapq.heappop(self.spot)


def write(course: Course, triage: Triage) -> dict[str, JSON]:
    """Write all files and return the report. Raises EnvironmentUnready when the folder cannot be written."""
    out = course.options.out
    with ExitStack() as stack:
        parts = {n: stack.enter_context(replacing(out / n)) for n in (ANNOTATED, REJECTED, UNFINISHED)}
        files = {
            n: stack.enter_context(part.open("w", encoding="utf-8", newline="\n"))
            for n, part in parts.items()
        }
        writer = Writer(course, files)
        samples = triage.samples()
        for row in triage.rows:
            if row is None:
                writer.tally.read += 1
                writer.tally.not_sampled += 1
            elif isinstance(row, RejectedRow):
                writer.left_out(row)
            else:
                writer.sample(next(samples))
        _withdraw(out / REPORT)
    shown = sorted(writer.spot, key=lambda s: s[0], reverse=True)
    write_text(
        out / SPOT,
        page([(row, sample) for _, row, sample in shown], writer.tally.outcomes[RowOutcome.ANNOTATED]),
    )
    report = _report(course, writer, triage, out)
    write_text(out / REPORT, json.dumps(report, indent=2, sort_keys=True) + "\n")
    return report


def annotated(
    sample: RawSample, result: RowResult, records: list[CallRecord], course: Course
) -> dict[str, JSON]:
    """The row with its checklists; what its calls cost is shared out evenly over its items."""
    prices = [r["usd"] for r in records if r["reply"] is not None]
    usd = None if None in prices else sum(prices)
    items = sum(len(turn) for turn in result.label.turns)
    own = {"price_usd": round(usd / items, 9)} if usd is not None else {}
    o = course.options
    return {
        "uuid": sample.uuid,
        "messages": sample.messages,
        "tools": sample.tools,
        "checklists": [
            [[{**item, "extra_info": own or None} for item in turn] for turn in result.label.turns]
        ],
        **_licence(sample, o.source.licence),
        **sample.about,
        "annotator": {
            "source": o.source.label,
            "model": o.model,
            "prompts": [course.prompts.filter_version, course.prompts.label_version],
            "passes": list(o.passes),
            "label_effort": o.label_effort,
            "repaired": result.repaired,
            "price_usd": None if usd is None else round(usd, 9),
        },
    }


def _licence(sample: RawSample, of_source: str) -> dict[str, str]:
    """The source's licence, for a row that states none."""
    stated = sample.about.get("license") or sample.about.get("licence")
    return {"licence": of_source} if of_source and not stated else {}


def _withdraw(report: Path) -> None:
    """From here until the new report stands, the folder does not claim to be complete."""
    try:
        report.unlink(missing_ok=True)
    except OSError as e:
        raise EnvironmentUnready(f"cannot write {report}: {e.strerror or e}") from e


def _report(course: Course, writer: Writer, triage: Triage, out: Path) -> dict[str, JSON]:
    o = course.options
    made = {name: {"rows": n, **_file(out / name)} for name, n in writer.lines.items()}
    return {
        "format": FORMAT,
        "source": o.source.about,
        "model": o.model,
        "prompts": {"filter": course.prompts.filter_version, "label": course.prompts.label_version},
        "passes": list(o.passes),
        "label_effort": o.label_effort,
        "sample": {"limit": o.limit, "seed": o.seed},
        **writer.tally.report(),
        "hits": dict(sorted(triage.hits.items())),
        "outputs": {**made, SPOT: {"rows": len(writer.spot), **_file(out / SPOT)}},
    }


def _file(path: Path) -> dict[str, JSON]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
