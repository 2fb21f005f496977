"""The rows of a source: those worth a model's time, and why the others are not.

Flows in: files of raw rows. Flows out: a `Triage`, made once; the samples, read anew as often as needed.
Invariant: every row read is a candidate, passed over by --limit, or has one rejection. Which candidates a
limit takes depends on the seed and their ids alone, and a higher limit takes those too. Candidates stay on
disk: memory holds a hash a row. A source that changes in between is an error, not a mixture."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from envace.data.annotate.dialogue import RawSample
from envace.data.annotate.options import AnnotateOptions
from envace.data.annotate.staged import WouldStage
from envace.data.check import CheckedRow, examine
from envace.data.faults import Fault, Reject
from envace.data.pool import chunks, ordered
from envace.data.progress import RowMeter, Say
from envace.data.readers import RawRow
from envace.data.row_forms import FormKind, RowForm, read_form
from envace.data.rules import RuleOptions
from envace.data.sources import read_files
from envace.data.verdicts import reject_line, uuid_of
from envace.errors import DataError

ALREADY = "already_annotated"  # the row brings a checklist; staging takes it as it is
ABOUT = ("license", "licence", "generator", "version", "category", "reasoning", "data_source")
CHUNK = 64  # rows judged together


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row left out before any call: `RejectedRow("a.jsonl:3", "u-1", "role_order", "messages[2]",
    "...")`."""

    where: str
    uuid: str | None
    reason: str
    field: str
    message: str

    def line(self) -> dict[str, str | None]:
        """As it stands in rejected.jsonl."""
        return {**asdict(self), "call": None}


@dataclass(slots=True)
class Triage:
    """The rows of a source in order, each a sample's key, a rejection, or None where --limit passes it
    over."""

    files: list[tuple[Path, str]]
    """Path, name in messages."""
    rows: list[str | RejectedRow | None] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    """Rows by every reason that holds of them."""

    @property
    def candidates(self) -> int:
        return sum(isinstance(row, str) for row in self.rows)

    @property
    def not_sampled(self) -> int:
        return sum(row is None for row in self.rows)

    def reasons(self) -> dict[str, int]:
        """Rejections by reason, the first of each row."""
        return dict(sorted(Counter(r.reason for r in self.rows if isinstance(r, RejectedRow)).items()))

    def samples(self) -> Iterator[RawSample]:
        """The candidates in order, read from disk. Raises DataError when the source is not what it was."""
        left, raws = self.candidates, read_files(self.files)
        for row in self.rows:
            if not left:
                return
            raw = next(raws, None)
            if not isinstance(row, str) and raw is not None:
                continue
            sample = _sample(raw, read_form(raw.row)) if raw is not None and raw.fault is None else None
            if sample is None or sample.key != row:
                raise DataError(
                    f"{raw.where if raw else self.files[-1][0]} changed while it was read; run again"
                )
            left -= 1
            yield sample


def triage(options: AnnotateOptions, say: Say = lambda text: None) -> Triage:
    """Sort all rows of the source; `say` hears how far it is. Raises DataError."""
    found, sorter = Triage(options.source.files), _Sorter()
    parts = chunks(read_files(found.files, RowMeter(say)), CHUNK)
    work = partial(judge, options.rules, options.staged)
    with closing(ordered(work, parts, options.workers)) as judged:
        for row in (row for chunk in judged for row in chunk):
            found.rows.append(sorter.sort(row))
            found.hits.update(row.hits)
    if options.limit:
        _pass_over(found.rows, sorter.ids, options.limit, options.seed)
    found.hits.update(sorter.repeats)
    return found


def _pass_over(rows: list[str | RejectedRow | None], ids: dict[str, int], limit: int, seed: int) -> None:
    """Leave the `limit` candidates with the smallest hash of seed and id."""
    passing = (uuid for uuid, k in ids.items() if isinstance(rows[k], str))
    chosen = heapq.nsmallest(limit, passing, key=lambda uuid: (_rank(seed, uuid), uuid))
    stay = {ids[uuid] for uuid in chosen}
    for k, row in enumerate(rows):
        if isinstance(row, str) and k not in stay:
            rows[k] = None


def _rank(seed: int, uuid: str) -> bytes:
    return hashlib.sha256(f"{seed}/{uuid}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Judged:
    """A row by itself: why it is left out, else its key, and why staging would leave it out."""

    where: str
    uuid: str = ""
    key: str = ""
    rejected: RejectedRow | None = None
    unwanted: RejectedRow | None = None
    hits: frozenset[str] = frozenset()


def judge(rules: RuleOptions, staged: WouldStage | None, chunk: list[RawRow]) -> list[Judged]:
    """Hold every row of a chunk to the rules; in any process, in any order."""
    return [_judge(rules, staged, raw) for raw in chunk]


def _judge(rules: RuleOptions, staged: WouldStage | None, raw: RawRow) -> Judged:
    if raw.fault:
        return _faulty(raw, [raw.fault])
    checked = examine(raw.row, rules)
    if faults := [f for f in checked.faults if f.reason is not Reject.NO_CHECKLIST]:
        return _faulty(raw, faults)
    if checked.form.kind is not FormKind.RAW:
        return _finished(raw, checked)
    sample = _sample(raw, checked.form)
    fault = staged.fault(sample) if staged else None
    unwanted = _rejected(raw, fault) if fault else None
    hits = frozenset({str(fault.reason)} if fault else ())
    return Judged(raw.where, sample.uuid, sample.key, unwanted=unwanted, hits=hits)


def _faulty(raw: RawRow, faults: list[Fault]) -> Judged:
    return Judged(
        raw.where, rejected=_rejected(raw, faults[0]), hits=frozenset(str(f.reason) for f in faults)
    )


def _finished(raw: RawRow, checked: CheckedRow) -> Judged:
    why = "has a checklist; stage the row as it is"
    rejected = RejectedRow(raw.where, checked.form.uuid, ALREADY, "checklists", why)
    return Judged(raw.where, rejected=rejected, hits=frozenset({ALREADY}))


class _Sorter:
    """Remembers what came before: of rows with one id or one content, the first is the candidate."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}  # id -> place of its first row
        self.repeats: Counter[str] = Counter()
        self._contents: set[str] = set()
        self._rows = -1

    def sort(self, row: Judged) -> str | RejectedRow:
        """A candidate's key, or why the row is none."""
        self._rows += 1
        if row.rejected:
            return row.rejected
        if fault := self._repeated(row):
            self.repeats[str(fault.reason)] += 1
            return RejectedRow(row.where, row.uuid, str(fault.reason), fault.field, fault.message)
        return row.unwanted or row.key

    def _repeated(self, row: Judged) -> Fault | None:
        if row.uuid in self.ids:
            return Fault(Reject.DUPLICATE_ID, "uuid", "an earlier row has the same uuid")
        if row.key in self._contents:
            return Fault(Reject.DUPLICATE_CONTENT, "row", "an earlier row has the same dialogue and tools")
        self.ids[row.uuid] = self._rows
        self._contents.add(row.key)
        return None


def _rejected(raw: RawRow, fault: Fault) -> RejectedRow:
    return RejectedRow(**reject_line(raw.where, uuid_of(raw.row), fault))


def _sample(raw: RawRow, form: RowForm) -> RawSample:
    about = {k: v for k in ABOUT if isinstance(v := raw.row.get(k), (str, int, float))}
    return RawSample(where=raw.where, uuid=form.uuid, messages=form.messages, tools=form.tools, about=about)
