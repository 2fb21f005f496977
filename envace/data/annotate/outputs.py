"""The files a run leaves: annotated.jsonl, rejected.jsonl, unfinished.jsonl, spot.html, report.json.

Rows stand in the order of the source. Each file is whole or as it was; the report is written last and holds
the checksums of the others; the same source, options and journal give the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict

from envace.data.annotate.call_plan import CallPlan, RowOutcome, RowResult
from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.journal import CallRecord
from envace.data.annotate.page import page
from envace.data.annotate.raw_rows import RawRows, RejectLine
from envace.data.source_files import UNSTATED
from envace.io.files import sha256, unwritable, write_text
from envace.types import JSON

FORMAT = 2
"""Of report.json."""
ANNOTATED, REJECTED, UNFINISHED = "annotated.jsonl", "rejected.jsonl", "unfinished.jsonl"
SPOT, REPORT = "spot.html", "report.json"
SUMS = ("requests", "read", "written", "seconds", "usd")


def write_outputs(plan: CallPlan, rows: RawRows) -> dict[str, JSON]:
    """Write all files and return the report. Raises EnvironmentUnready when the folder cannot be written."""
    out, outputs = plan.options.out, _Outputs(plan, rows)
    for row in rows.rows:
        if isinstance(row, RawSample):
            outputs.sample(row)
        elif row is not None:
            outputs.left_out(row)
    with unwritable(out / REPORT):  # until it stands anew, the folder does not claim to be whole
        (out / REPORT).unlink(missing_ok=True)
    files = {}
    for name, lines in outputs.lines.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(out / name, text.encode("utf-8", "replace").decode())
        files[name] = len(lines)
    shown = [outputs.ranked[rank] for rank in sorted(outputs.ranked)[::-1][: plan.options.spot]]
    write_text(out / SPOT, page(shown, len(outputs.ranked)))
    files[SPOT] = len(shown)
    report = outputs.report()
    report["outputs"] = {
        name: {"rows": n, "bytes": (out / name).stat().st_size, "sha256": sha256(out / name)}
        for name, n in files.items()
    }
    write_text(out / REPORT, json.dumps(report, indent=2, sort_keys=True) + "\n")
    return report


class _Outputs:
    """The lines of the files, and what is counted on the way."""

    def __init__(self, plan: CallPlan, rows: RawRows):
        self.plan, self.rows = plan, rows
        self.lines: dict[str, list[dict[str, JSON]]] = {ANNOTATED: [], REJECTED: [], UNFINISHED: []}
        self.ranked: dict[str, tuple[dict[str, JSON], RawSample]] = {}
        """Annotated rows by a hash: random, yet the same every time."""
        self.outcomes, self.labels = Counter[str](), Counter[str]()
        self.calls: dict[str, Counter[str]] = defaultdict(Counter)
        self.named: dict[str, Counter[str]] = defaultdict(Counter)
        """Rows or items by name: each outcome's reasons, rejected_by_pass, licences, focus_on."""

    def left_out(self, row: RejectLine) -> None:
        """A row no call was made for."""
        self.outcomes[RowOutcome.REJECTED] += 1
        self.named[RowOutcome.REJECTED][row["reason"]] += 1
        self.lines[REJECTED].append(row)

    def sample(self, sample: RawSample) -> None:
        """A candidate, whatever became of it."""
        at, records = self.plan.state(sample), self.plan.records(sample)
        for r in records:
            kind, replied = r["call"].split(":")[0], r["reply"] is not None
            self.calls[r["call"] if kind == "filter" else kind].update(
                {key: r[key] or 0 for key in SUMS},
                calls=1,
                replies=replied,
                unstructured=replied and not r["structured"],
                without_tokens=replied and None in (r["read"], r["written"]),
                without_price=replied and r["usd"] is None,
            )
        self.outcomes[at.outcome] += 1
        if at.reason:
            self.named[at.outcome][at.reason] += 1
        about = {"where": sample.where, "uuid": sample.uuid}
        if at.outcome is RowOutcome.ANNOTATED:
            row = self._annotated(sample, at, records)
            self.lines[ANNOTATED].append(row)
            rank = hashlib.sha256(f"{self.plan.options.seed}/{sample.key}".encode()).hexdigest()
            self.ranked[rank] = row, sample
        elif at.outcome is RowOutcome.REJECTED:
            self.named["rejected_by_pass"][at.call] += 1
            told = {"reason": at.reason, "field": "messages", "message": at.detail, "call": at.call}
            self.lines[REJECTED].append(about | told)
        else:
            told = {"outcome": at.outcome.value, "reason": at.reason, "call": at.call, "detail": at.detail}
            self.lines[UNFINISHED].append(about | told)

    def _annotated(self, sample: RawSample, at: RowResult, records: list[CallRecord]) -> dict[str, JSON]:
        """The row with its checklists; what its calls cost is shared out evenly over its items."""
        items = [item for turn in at.label.turns for item in turn]
        evidence = [part for item in items for part in item["evidence"]]
        self.labels.update(
            turns=len(at.label.turns),
            items=len(items),
            evidence=len(evidence),
            verbatim_evidence=sum(sample.verbatim(part) for part in evidence),
            required=sum(item["required_for_next_turn"] for item in items),
            renormalised_turns=at.label.renormalised,
            repaired_rows=at.repaired,
        )
        self.named["focus_on"].update(item["focus_on"] for item in items)
        self.named["licences"][str(sample.licence or "not stated")] += 1
        prices = [r["usd"] for r in records if r["reply"] is not None]
        usd = None if None in prices else sum(prices)
        own = None if usd is None else {"price_usd": round(usd / len(items), 9)}
        o, source, prompts = self.plan.options, self.rows.source, self.plan.prompts
        licence = {} if sample.licence or source.licence in ("", UNSTATED) else {"licence": source.licence}
        revision = f" at {source.revision}" if source.revision else ""
        return {
            "uuid": sample.uuid,
            "messages": sample.messages,
            "tools": sample.tools,
            "checklists": [[[{**item, "extra_info": own} for item in turn] for turn in at.label.turns]],
            **licence,
            **sample.about,
            "annotator": {
                "source": f"{source.kind} {source.uri}{revision}",
                "model": o.model,
                "prompts": [prompts.filter_version, prompts.label_version],
                "passes": list(o.efforts),
                "label_effort": o.label_effort,
                "repaired": at.repaired,
                "price_usd": None if usd is None else round(usd, 9),
            },
        }

    def report(self) -> dict[str, JSON]:
        """What the run came to, from the source and the journal alone. Raises AssertionError where rows are
        missing."""
        o, prompts, read, named = self.plan.options, self.plan.prompts, len(self.rows.rows), self.named
        counts = {outcome.value: self.outcomes[outcome] for outcome in RowOutcome}
        counts["not_sampled"] = self.rows.rows.count(None)
        if sum(counts.values()) != read:
            raise AssertionError(f"{read} rows read, but {counts}")
        return {
            "format": FORMAT,
            "source": self.rows.source.about(),
            "model": o.model,
            "prompts": {"filter": prompts.filter_version, "label": prompts.label_version},
            "passes": list(o.efforts),
            "label_effort": o.label_effort,
            "sample": {"limit": o.limit, "seed": o.seed},
            "counts": {"read": read, **counts},
            "reasons": {o.value: dict(sorted(named[o].items())) for o in RowOutcome if named[o]},
            "rejected_by_pass": named["rejected_by_pass"],
            "labels": {**self.labels, "focus_on": named["focus_on"]},
            "licences": named["licences"],
            "calls": {name: _sums(counted) for name, counted in self.calls.items()},
            "total": _sums(sum(self.calls.values(), Counter())),
            "hits": self.rows.hits,
        }


def _sums(counted: Counter[str]) -> dict[str, JSON]:
    known = counted["replies"] and not counted["without_price"]
    return {
        "calls": counted["calls"],
        "replies": counted["replies"],
        "requests": counted["requests"],
        "retries": counted["requests"] - counted["calls"],
        "unstructured_replies": counted["unstructured"],
        "tokens_read": counted["read"],
        "tokens_written": counted["written"],
        "replies_without_tokens": counted["without_tokens"],
        "seconds": round(counted["seconds"], 3),
        "usd": round(counted["usd"], 6) if known else None,
    }
