"""The rows of a source: those worth a model's time, and why the others are not.

Flows in: a file or folder of raw rows. Flows out: a `Triage`, made once; the samples, read anew as often as needed.
Invariant: every row read is a candidate or has one rejection. Candidates stay on disk: memory holds a hash a row.
A source that changes in between is an error, not a mixture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from envace.data.annotate.dialogue import Sample
from envace.data.annotate.options import Options
from envace.data.check import examine
from envace.data.faults import Fault, Reject
from envace.data.forms import Form, Kind, read_form
from envace.data.readers import READERS, Raw
from envace.data.sift import reject
from envace.errors import DataError

ALREADY = "already_annotated"  # the row brings a checklist; staging takes it as it is
ABOUT = ("license", "licence", "generator", "version", "category", "reasoning", "data_source")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row left out before any call: `Rejected("a.jsonl:3", "u-1", "role_order", "messages[2]", "...")`."""

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
    """The rows of a source in order, each a sample's key or a rejection."""

    files: list[tuple[Path, str]]  # path, name in messages
    rows: list[str | Rejected] = field(default_factory=list)
    limited: bool = False  # reading stopped at --limit

    @property
    def candidates(self) -> int:
        return len(self.rows) - sum(self.reasons().values())

    def reasons(self) -> dict[str, int]:
        """Rejections by reason."""
        return dict(sorted(Counter(r.reason for r in self.rows if isinstance(r, Rejected)).items()))

    def samples(self) -> Iterator[Sample]:
        """The candidates in order, read from disk. Raises DataError when the source is not what it was."""
        raws = _read(self.files)
        for row in self.rows:
            raw = next(raws, None)
            if isinstance(row, Rejected) and raw is not None:
                continue
            sample = _sample(raw, read_form(raw.row)) if raw is not None and raw.fault is None else None
            if sample is None or sample.key != row:
                raise DataError(
                    f"{raw.where if raw else self.files[-1][0]} changed while it was read; run again"
                )
            yield sample


def triage(options: Options, seen: Callable[[int], None] = lambda n: None) -> Triage:
    """Sort the rows of the source, up to the limit. `seen` hears how many were read. Raises DataError."""
    found, sorter = Triage(_files(options.source)), _Sorter(options)
    for raw in _read(found.files):
        found.rows.append(sorter.sort(raw))
        seen(len(found.rows))
        if options.limit and sorter.candidates == options.limit:
            found.limited = True
            break
    return found


class _Sorter:
    """Remembers what came before: of rows with one id or one content, the first is the candidate."""

    def __init__(self, options: Options):
        self.options = options
        self.candidates = 0
        self._ids: set[str] = set()
        self._contents: set[str] = set()

    def sort(self, raw: Raw) -> str | Rejected:
        """A candidate's key, or why the row is none."""
        if raw.fault:
            return _rejected(raw, raw.fault)
        checked = examine(raw.row, self.options.rules)
        faults = [f for f in checked.faults if f.reason is not Reject.NO_CHECKLIST]
        if faults:
            return _rejected(raw, faults[0])
        if checked.form.kind is not Kind.RAW:
            why = "has a checklist; stage the row as it is"
            return Rejected(raw.where, checked.form.uuid, ALREADY, "checklists", why)
        sample = _sample(raw, checked.form)
        if fault := self._repeated(sample) or (self.options.staged and self.options.staged.fault(sample)):
            return _rejected(raw, fault)
        self.candidates += 1
        return sample.key

    def _repeated(self, sample: Sample) -> Fault | None:
        if sample.uuid in self._ids:
            return Fault(Reject.DUPLICATE_ID, "uuid", "an earlier row has the same uuid")
        if sample.key in self._contents:
            return Fault(Reject.DUPLICATE_CONTENT, "row", "an earlier row has the same dialogue and tools")
        self._ids.add(sample.uuid)
        self._contents.add(sample.key)
        return None


def _rejected(raw: Raw, fault: Fault) -> Rejected:
    return Rejected(**reject(raw.where, raw.row, fault))


def _sample(raw: Raw, form: Form) -> Sample:
    about = {k: v for k in ABOUT if isinstance(v := raw.row.get(k), (str, int, float))}
    return Sample(where=raw.where, uuid=form.uuid, messages=form.messages, tools=form.tools, about=about)


def _files(source: Path) -> list[tuple[Path, str]]:
    if source.is_file() and source.suffix in READERS:
        return [(source, source.name)]
    found = sorted(
        f for f in source.rglob("*") if f.suffix in READERS and f.is_file() and not f.name.startswith(".")
    )
    if not found:
        raise DataError(f"{source} holds no rows; name a file or folder of {', '.join(sorted(READERS))}")
    return [(f, f.relative_to(source).as_posix()) for f in found]


def _read(files: list[tuple[Path, str]]) -> Iterator[Raw]:
    for path, name in files:
        yield from READERS[path.suffix](path, name)
