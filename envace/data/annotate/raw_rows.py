"""The raw rows of a source: those worth a model's time, and why the others are not.

Every row read is a candidate, passed over by --limit, or has one rejection. Which candidates a limit takes
depends on the seed and their ids alone, and a higher limit takes those too."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from envace.config import Params
from envace.data.annotate.arguments import AnnotateOptions
from envace.data.annotate.dialogue import RawSample
from envace.data.check import examine
from envace.data.faults import Fault, Reject
from envace.data.fetch import fetch, place
from envace.data.pool import chunks, ordered
from envace.data.progress import RowMeter, Say
from envace.data.prompt_length import Estimate, prompt_counter
from envace.data.readers import READERS, RawRow
from envace.data.row_forms import FormKind
from envace.data.source_files import UNSTATED, Fetched, SourceFile
from envace.data.sources import read_files
from envace.data.verdicts import RowLimits, cores, judge_row, reject_line, uuid_of
from envace.errors import DataError, ParamsError
from envace.io.files import sha256
from envace.types import JSON

ALREADY = "already_annotated"
"""The row brings a checklist; staging takes it as it is."""
ABOUT = ("license", "licence", "generator", "version", "category", "reasoning", "data_source")
CHUNK = 64
"""Rows judged together."""
RejectLine = dict[str, JSON]
"""A row left out before any call, as it stands in rejected.jsonl."""


def raw_source(path: Path | None, params: Params, say: Say) -> Fetched:
    """The files of a path, or of `data.*`: fetched, verified and held against their last use as staging does.

    Raises DataError, EnvironmentUnready and ParamsError."""
    if path is None:
        if params.data.source == "desk":
            raise ParamsError(
                "data.source is desk, whose rows have checklists; name a file or folder of raw rows, or the "
                "source of them under data (hub, s3 or local) in --params"
            )
        fetched = fetch(params, place(params), say)
        return replace(fetched, licence=params.data.licence or fetched.licence)
    folder, found = (path.parent, [path]) if path.is_file() else (path, sorted(path.rglob("*")))
    found = [f for f in found if f.suffix in READERS and f.is_file()]
    found = [f for f in found if f == path or not f.name.startswith(".")]
    if not found:
        raise DataError(f"{path} holds no rows; name a file or folder of {', '.join(sorted(READERS))}")
    files = [SourceFile(f.relative_to(folder).as_posix(), f.stat().st_size, sha256(f)) for f in found]
    return Fetched("local", str(path), "", UNSTATED, folder, tuple(files))


@dataclass(slots=True)
class RawRows:
    """The rows of a source in order, each a sample, a rejection, or None where --limit passes it over."""

    source: Fetched
    rows: list[RawSample | RejectLine | None] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    """Rows by every reason that holds of them."""

    @property
    def samples(self) -> list[RawSample]:
        """The candidates."""
        return [row for row in self.rows if isinstance(row, RawSample)]

    def reasons(self) -> dict[str, int]:
        """Rejections by reason, the first of each row."""
        return dict(sorted(Counter(row["reason"] for row in self.rows if isinstance(row, dict)).items()))


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A row by itself: what is wrong with it, else its sample, and why staging would leave it out."""

    where: str
    uuid: str | None
    faults: list[Fault]
    sample: RawSample | None = None
    unwanted: list[Fault] = field(default_factory=list)


def judge_raw_rows(limits: RowLimits, select: bool, chunk: list[RawRow]) -> list[JudgedRow]:
    """Hold every row of a chunk to the rules, and with `select` to the limits of staging; in any process, in
    any order."""
    judged = []
    for raw in chunk:
        checked = None if raw.fault else examine(raw.row, limits.options)
        faults = checked.faults if checked else [raw.fault]
        faults = [fault for fault in faults if fault.reason is not Reject.NO_CHECKLIST]
        if checked and not faults and checked.form.kind is not FormKind.RAW:
            faults = [Fault(ALREADY, "checklists", "has a checklist; stage the row as it is")]
        row = JudgedRow(raw.where, uuid_of(raw.row), faults)
        if not faults:
            about = {k: v for k in ABOUT if isinstance(v := raw.row.get(k), (str, int, float))}
            form = checked.form
            row = replace(row, sample=RawSample(raw.where, form.uuid, form.messages, form.tools, about=about))
        if select and not faults:
            checked.faults, checked.form.checklist = [], [[]]  # as if it had an empty one
            verdict = judge_row(limits, raw, checked)
            row.unwanted.extend(verdict.faults)
            if verdict.kept and verdict.kept.dropped:
                row.unwanted.append(Fault(Reject.NOT_SELECTED, "row", "is left out by data.select"))
        judged.append(row)
    return judged


def triage(options: AnnotateOptions, params: Params, source: Fetched, say: Say) -> RawRows:
    """Sort all rows of the source; `say` hears how far it is. Of rows with one id or one content, the first
    is the candidate. Raises DataError."""
    limits = RowLimits.of(params, prompt_counter(params)[0] if options.select else Estimate())
    found, ids, contents = RawRows(source), set[str](), set[str]()
    files = [(source.folder / f.name, f.name) for f in source.files]
    parts = chunks(read_files(files, RowMeter(say)), CHUNK)
    work = partial(judge_raw_rows, limits, options.select)
    with closing(ordered(work, parts, params.data.workers or cores())) as judged:
        for row in chain.from_iterable(judged):
            faults = row.faults
            if not faults and row.uuid in ids:
                faults = [Fault(Reject.DUPLICATE_ID, "uuid", "an earlier row has the same uuid")]
            elif not faults and row.sample.key in contents:
                words = "an earlier row has the same dialogue and tools"
                faults = [Fault(Reject.DUPLICATE_CONTENT, "row", words)]
            elif not faults:
                ids.add(row.uuid)
                contents.add(row.sample.key)
            found.hits.update({str(fault.reason) for fault in (*faults, *row.unwanted)})
            faults = faults or row.unwanted
            line = {**reject_line(row.where, row.uuid, faults[0]), "call": None} if faults else None
            found.rows.append(line or row.sample)
    if options.limit:
        ranks = {hashlib.sha256(f"{options.seed}/{s.uuid}".encode()).digest(): s.uuid for s in found.samples}
        stay = {ranks[rank] for rank in sorted(ranks)[: options.limit]}
        found.rows = [r if isinstance(r, dict) or r.uuid in stay else None for r in found.rows]
    return found
