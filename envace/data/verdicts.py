"""One chunk of rows judged: what a worker process does.

Flows in: raw rows. Flows out: for each row either why it is left out, or the row in its stored form as JSON.
Invariant: a row's verdict depends on the row and the parameters alone, so chunks can be judged anywhere, in
any order. Equal rows give equal bytes: nothing that is stored depends on the place of a row in its file."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from envace.config import Params
from envace.data import jsontext
from envace.data.check import CheckedRow, examine
from envace.data.faults import Fault, Reject
from envace.data.prompt_length import TokenCounter
from envace.data.readers import RawRow
from envace.data.row_forms import Row
from envace.data.rules import RuleOptions
from envace.data.schema import row_from_task, task_of
from envace.data.select import Ratios, dropped, read_ratios
from envace.data.sizes import size_of
from envace.data.source_files import read_splits
from envace.types import JSON

_encode = msgspec.json.Encoder().encode
STATED = {"licence": ("licence", "license"), "generator": ("generator",), "annotator": ("annotator",)}


@dataclass(frozen=True, slots=True)
class RowLimits:
    """What rows are held to."""

    count: TokenCounter
    limit: int
    """Tokens of a first prompt."""
    options: RuleOptions = RuleOptions()
    ratios: Ratios = field(default_factory=dict)
    seed: int = 0
    licence: str = ""
    """Of rows that state none."""

    @classmethod
    def of(cls, params: Params, count: TokenCounter, licence: str = "") -> RowLimits:
        """As the parameters say. Raises ParamsError."""
        d = params.data
        options = RuleOptions(require_thinking=d.require_thinking, strict_tools=d.strict_tool_schema)
        read_splits(d.splits, d.source)
        return cls(count, d.max_first_prompt_tokens, options, read_ratios(d.select), params.seed, licence)


@dataclass(slots=True)
class KeptRow:
    """A row without faults."""

    uuid: str
    split: str
    """Named by the source, or empty."""
    dropped: bool
    """`data.select` leaves it out."""
    digest: bytes
    """Of the whole stored row but for its file."""
    content: bytes
    """Digest of its dialogue and tools."""
    size: bytes
    row: bytes


@dataclass(slots=True)
class RowVerdict:
    """What became of one row: its faults, or the row as it is stored."""

    where: str
    uuid: str | None
    faults: list[Fault]
    kept: KeptRow | None = None


@dataclass(slots=True)
class ChunkVerdicts:
    """Those of a chunk, in order."""

    rows: list[RowVerdict] = field(default_factory=list)
    forms: Counter[str] = field(default_factory=Counter)
    """Form -> rows."""
    variants: int = 0
    """Rows whose checklist has variants beyond the one that is used."""


def judge_chunk(limits: RowLimits, chunk: Iterable[RawRow]) -> ChunkVerdicts:
    """Judge a chunk of raw rows."""
    found = ChunkVerdicts()
    for raw in chunk:
        checked = None if raw.fault else examine(raw.row, limits.options)
        if checked:
            found.forms[str(checked.form.kind)] += 1
            variants = checked.form.checklist
            found.variants += isinstance(variants, list) and len(variants) > 1
        found.rows.append(judge_row(limits, raw, checked))
    return found


def judge_row(limits: RowLimits, raw: RawRow, checked: CheckedRow | None) -> RowVerdict:
    """Every fault of a row that was examined, or could not be read; else the row to keep."""
    verdict = RowVerdict(raw.where, uuid_of(raw.row), [])
    if checked is None or checked.faults:
        verdict.faults = checked.faults if checked else [f for f in (raw.fault,) if f]
        return verdict
    form, row = checked.form, row_from_task(task_of(checked))
    tokens = limits.count(row, form.tools)
    if tokens > limits.limit:
        words = f"has {tokens} tokens, more than data.max_first_prompt_tokens ({limits.limit})"
        verdict.faults = [Fault(Reject.PROMPT_TOO_LONG, form.names.prefix, f"the first prompt {words}")]
        return verdict
    size = size_of(row, len(form.tools), tokens)
    thinned = raw.split in ("", "train") and dropped(limits.ratios, limits.seed, form.uuid, size)
    origin, extra = origin_of(raw.row, raw.where, limits.licence), row["extra_info"]
    content = _digest(_encode(extra["messages"]) + extra["tools"].encode(), 16)
    # what is said of the row's origin decides between rows only that are equal otherwise, its file not even
    # then
    rest = _encode({**row, "extra_info": {**extra, "messages": content.hex()}})
    digest = _digest(rest, 12) + _digest(_encode({**origin, "origin": None}), 4)
    extra |= origin
    verdict.kept = KeptRow(form.uuid, raw.split, thinned, digest, content, _encode(size), _encode(row))
    return verdict


def _digest(text: bytes, size: int) -> bytes:
    return hashlib.sha256(text).digest()[:size]


def origin_of(row: Row, where: str, licence: str) -> dict[str, str | None]:
    """Where a row read at `where` (`a.jsonl:3`) came from and who made it; `licence` is that of rows which
    state none.

    `origin` and `uuid` together name one row of the source that the manifest describes.
    """
    extra = row.get("extra_info")
    places, said = [row, extra] if isinstance(extra, dict) else [row], dict[str, str | None]()
    for key, names in STATED.items():
        texts = (_text(place.get(name)) for place in places for name in names)
        said[key] = next(filter(None, texts), None)
    return said | {"licence": said["licence"] or licence, "origin": where.rpartition(":")[0] or where}


def _text(value: JSON) -> str:
    """Text as it is, other data as JSON text in one spelling, nothing as nothing."""
    if isinstance(value, str) or not value:
        return value or ""
    try:
        return msgspec.json.encode(jsontext.without_nulls(value), order="sorted").decode()
    except RecursionError:
        return "nested too deep to be kept"


def uuid_of(row: JSON) -> str | None:
    """A row's id where it has one, as it can be stored."""
    uuid = row.get("uuid") if isinstance(row, dict) else None
    return storable(uuid) if isinstance(uuid, str) else None


def reject_line(where: str, uuid: str | None, fault: Fault) -> Row:
    """The line of rejects.jsonl for a row that is left out."""
    told = {"field": storable(fault.field), "message": storable(fault.message)}
    return {"where": where, "uuid": uuid, "reason": str(fault.reason), **told}


def storable(text: str) -> str:
    """Text with what UTF-8 cannot hold replaced."""
    return text.encode("utf-8", "replace").decode()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
