"""One chunk of rows judged: what a worker process does.

Flows in: raw rows. Flows out: for each row either why it is left out or the row in its stored form, as bytes ready
for the scratch file.
Invariant: a row's verdict depends on the row and the parameters alone, so chunks can be judged anywhere, in any
order. Equal rows give equal bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from envace.data import length
from envace.data.check import Checked, Fault, Options, Reject, examine
from envace.data.forms import Row
from envace.data.provenance import provenance
from envace.data.schema import stored
from envace.data.select import Ratios, dropped
from envace.data.settle import Entry
from envace.data.sizes import size_of

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Sieve:
    """What rows are held to."""

    count: length.Counter
    limit: int  # tokens of a first prompt
    options: Options = Options()
    ratios: Ratios = field(default_factory=dict)
    seed: int = 0
    licence: str = ""  # of rows that state none


@dataclass(slots=True)
class Sifted:
    """A chunk's verdicts. Ordinals count from the chunk's first row."""

    rows: int = 0
    kept: list[tuple[Entry, bytes]] = field(default_factory=list)
    rejects: list[tuple[int, Row]] = field(default_factory=list)  # ordinal, line of rejects.jsonl
    hits: Counter[str] = field(
        default_factory=Counter
    )  # reason -> rows with such a fault; a row may have several
    forms: Counter[str] = field(default_factory=Counter)  # form -> rows
    variants: int = 0  # rows whose checklist has variants beyond the one that is used


def sift(sieve: Sieve, chunk: Sequence[Any]) -> Sifted:
    """Judge a chunk of raw rows."""
    found = Sifted(rows=len(chunk))
    for ordinal, raw in enumerate(chunk):
        row, faults = raw.row, [raw.fault] if raw.fault else []
        if not faults:
            checked = examine(row, sieve.options)
            faults = checked.faults
            _count_form(checked, found)
        if not faults:
            entry, record, faults = keep(sieve, ordinal, raw, checked)
        found.hits.update({str(f.reason) for f in faults})
        if faults:
            found.rejects.append((ordinal, reject(raw.where, row, faults[0])))
        else:
            found.kept.append((entry, record))
    return found


def _count_form(checked: Checked, found: Sifted) -> None:
    found.forms[str(checked.form.kind)] += 1
    variants = checked.form.checklist
    found.variants += isinstance(variants, list) and len(variants) > 1


def keep(sieve: Sieve, ordinal: int, raw: Any, checked: Checked) -> tuple[Any, bytes, list[Fault]]:
    """The entry of a row without faults and its record for the scratch file; or the fault that it is too long."""
    form = checked.form
    row = stored(checked)
    tokens = sieve.count(row, form.tools)
    if tokens > sieve.limit:
        words = (
            f"the first prompt has {tokens} tokens, more than data.max_first_prompt_tokens ({sieve.limit})"
        )
        return None, b"", [Fault(Reject.PROMPT_TOO_LONG, form.names.prefix, words)]
    size = size_of(row, len(form.tools), tokens)
    entry = Entry(
        ordinal=ordinal, uuid=form.uuid, split=raw.split,
        dropped=raw.split in ("", "train") and dropped(sieve.ratios, sieve.seed, form.uuid, size),
    )  # fmt: skip
    signature = provenance(raw.row, raw.where, sieve.licence)
    return entry, b"\n".join((_encode(raw.where), _encode(size), _written(row, signature, entry), b"")), []


def _written(row: Row, signature: Row, entry: Entry) -> bytes:
    """The row as JSON; the entry gets its digests. The dialogue, its largest part, is written and read over once.

    What is said of the row's provenance decides between rows only that are equal otherwise, its file not even then.
    """
    extra = row["extra_info"]
    dialogue = _encode(extra["messages"])
    entry.content = _digest(dialogue + extra["tools"].encode(), 16)
    rest = _encode({**row, "extra_info": {**extra, "messages": entry.content.hex()}})
    entry.digest = _digest(rest, 12) + _digest(_encode({**signature, "origin": None}), 4)
    extra |= signature
    extra["messages"] = msgspec.Raw(dialogue)
    return _encode(row)


def _digest(text: bytes, size: int) -> bytes:
    return hashlib.sha256(text).digest()[:size]


def reject(where: str, row: Any, fault: Fault) -> Row:
    """The line of rejects.jsonl for a row that is left out."""
    uuid = row.get("uuid") if isinstance(row, dict) else None
    return {
        "where": where,
        "uuid": storable(uuid) if isinstance(uuid, str) else None,
        "reason": str(fault.reason),
        "field": storable(fault.field),
        "message": storable(fault.message),
    }


def storable(text: str) -> str:
    """Text with what UTF-8 cannot hold replaced."""
    return text.encode("utf-8", "replace").decode()
