"""What a staged folder says about itself.

Flows in: everything counted on the way. Flows out: `manifest.json` as plain data. Invariant: every row read
is in exactly one count of `rejected_by_reason` or in one split; no number depends on how many processes
worked, nor does any other part.

`counts` holds `read`, `kept`, `rejected`, a number a split, and

    steps                what is left after each step: read, without_faults, one_an_id, distinct, selected
    rejected_by_reason   rows by the first reason against them; adds up to `rejected`
    hits                 rows by every reason that holds; a row may be in several
    forms                rows by the form they came in
    more_variants        rows whose checklist has variants that are not used
    tags                 kept rows by tag
    licences, sources    kept rows by licence, and by the file they came from

`statistics` holds histograms of the kept rows, `{"turns": {"edges": [...], "counts": [...]}}`, the last bin
open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from envace.config import Params, to_dict
from envace.data.faults import Reject
from envace.data.judged_rows import KeptEntry
from envace.data.row_forms import Row
from envace.data.sizes import Histograms, RowSize
from envace.data.verdicts import ChunkVerdicts
from envace.io.files import sha256
from envace.types import JSON

FORMAT = 3
NOT_WHAT_BUT_HOW = ("workers", "accept_changed")  # of `data`: change no byte
LATE = (Reject.DUPLICATE_ID, Reject.DUPLICATE_CONTENT, Reject.NOT_SELECTED)  # told by the whole source


@dataclass(slots=True)
class StagingTally:
    """Counts as they grow."""

    read: int = 0
    kept: int = 0
    rejected: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    variants: int = 0
    sizes: Histograms = field(default_factory=Histograms)

    def add(self, found: ChunkVerdicts) -> None:
        """Count a chunk."""
        self.read += len(found.rows)
        self.forms += found.forms
        self.variants += found.variants
        for verdict in found.rows:
            self.hits.update({str(f.reason) for f in verdict.faults})

    def reject(self, line: Row) -> None:
        """Count a line of rejects.jsonl."""
        self.rejected += 1
        self.reasons[line["reason"]] += 1
        self.hits[line["reason"]] += line["reason"] in LATE

    def keep(self, size: RowSize, row: Row) -> None:
        """Count a row that is kept."""
        self.kept += 1
        self.sizes.add(size)
        self.tags.update(size.tags)
        self.licences[row["extra_info"]["licence"]] += 1
        self.sources[row["extra_info"]["origin"]] += 1

    def counts(self, splits: dict[str, list[KeptEntry]]) -> dict[str, JSON]:
        """The manifest's `counts`. Every row is kept or rejected."""
        if self.read != self.kept + self.rejected:
            raise AssertionError(f"{self.read} rows read, {self.kept} kept, {self.rejected} rejected")
        left = self.kept + sum(self.reasons[r] for r in LATE)
        steps = {"read": self.read, "without_faults": left}
        for name, reason in zip(("one_an_id", "distinct", "selected"), LATE):
            left -= self.reasons[reason]
            steps[name] = left
        return {
            "read": self.read,
            "kept": self.kept,
            "rejected": self.rejected,
            **{name: len(rows) for name, rows in splits.items()},
            "steps": steps,
            "rejected_by_reason": _sorted(self.reasons),
            "hits": _sorted(self.hits),
            "forms": _sorted(self.forms),
            "more_variants": self.variants,
            "tags": _sorted(self.tags),
            "licences": _sorted(self.licences),
            "sources": _sorted(self.sources),
        }


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {name: n for name, n in sorted(counts.items()) if n}


def manifest(
    params: Params,
    out: Path,
    about: dict[str, JSON],
    tally: StagingTally,
    splits: dict[str, list[KeptEntry]],
    how: str,
) -> dict[str, JSON]:
    """The manifest of a folder whose other files are all there."""
    data = {k: v for k, v in to_dict(params.data).items() if k not in NOT_WHAT_BUT_HOW}
    rows = {f"{n}.parquet": len(rows) for n, rows in splits.items()} | {"rejects.jsonl": tally.rejected}
    return {
        "format": FORMAT,
        "source": about,
        "params": {"seed": params.seed, "data": data, "desk": to_dict(params.desk)},
        "prompt_length": how,
        "counts": tally.counts(splits),
        "statistics": tally.sizes.as_dict(),
        "outputs": {
            name: {"rows": n, "bytes": (out / name).stat().st_size, "sha256": sha256(out / name)}
            for name, n in rows.items()
        },
    }
