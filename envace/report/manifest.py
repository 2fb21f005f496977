"""The manifest of the staged rows as a record, of any format and however damaged.

Invariant: nothing in a manifest raises; a part that is not what it should be is dropped and named among the
problems, one that an older format lacks is empty and no problem."""

from __future__ import annotations

import itertools
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from envace.types import JSON

MANIFEST = "data/staged/manifest.json"
Count = Annotated[int, Field(ge=0, lt=2**53)]


class Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class StagedFile(Part):
    """A file of the source, or one that staging made."""

    name: str = ""
    rows: Count | None = None
    bytes: Count | None = None
    sha256: str = ""
    version: str = ""
    etag: str = ""


class DataSource(Part):
    kind: str = ""
    """desk | local | s3 | hub"""
    uri: str = ""
    revision: str = ""
    licence: str = ""
    files: tuple[StagedFile, ...] = ()


class RowCounts(Part):
    read: Count | None = None
    kept: Count | None = None
    rejected: Count | None = None
    more_variants: Count | None = None
    steps: dict[str, Count] = {}
    """Rows left after each."""
    rejected_by_reason: dict[str, Count] = {}
    """Rows by the first reason against them."""
    hits: dict[str, Count] = {}
    """Rows by every reason that holds."""
    forms: dict[str, Count] = {}
    tags: dict[str, Count] = {}
    licences: dict[str, Count] = {}
    sources: dict[str, Count] = {}


class Histogram(Part):
    """`{"edges": [1, 2, 5], "counts": [40, 12, 0]}`: 40 ones, 12 from 2 to 4, none of 5 or more."""

    edges: tuple[float, ...]
    """Lower edge of each bin, increasing; the last bin is open."""
    counts: tuple[Count, ...]
    """[len(edges)]"""

    @model_validator(mode="after")
    def _rising(self) -> Histogram:
        if not self.edges or len(self.edges) != len(self.counts):
            raise ValueError("no histogram")
        if any(a >= b for a, b in itertools.pairwise(self.edges)):
            raise ValueError("edges that do not rise")
        return self

    @property
    def used(self) -> list[int]:
        """The bins from the first that holds something to the last."""
        filled = [k for k, n in enumerate(self.counts) if n]
        return list(range(filled[0], filled[-1] + 1)) if filled else []

    @property
    def median(self) -> int:
        """The bin of the middle number, of the lower one of two."""
        total = sum(self.counts)
        return next(k for k, n in enumerate(itertools.accumulate(self.counts)) if 2 * n >= total)

    @property
    def whole(self) -> bool:
        return all(e.is_integer() for e in self.edges)

    def label(self, k: int) -> str:
        """`3`, `6–7` or `20+` for whole numbers: exactly which fall into a bin."""
        low = self.edges[k]
        if k == len(self.edges) - 1:
            return f"{low:g}+"
        high = self.edges[k + 1] - self.whole
        return f"{low:g}" if high == low else f"{low:g}–{high:g}"


class Manifest(Part):
    format: Count | None = None
    source: DataSource = DataSource()
    counts: RowCounts = RowCounts()
    statistics: dict[str, Histogram] = {}
    params: dict[str, JSON] = {}
    outputs: dict[str, StagedFile] = {}
    prompt_length: str = ""
    """How it was counted."""


def read_manifest(data: dict[str, JSON], problems: list[str]) -> Manifest:
    """What a manifest says; appends a line to `problems` for each part that cannot be used."""
    while True:
        try:
            return Manifest.model_validate_json(json.dumps(data))
        except ValidationError as e:
            fault = e.errors(include_url=False, include_input=False)[0]
            where = _drop(data, fault["loc"])
            problems.append(f"{MANIFEST}: {where}: {fault['msg']}")


def _drop(data: Any, loc: tuple[int | str, ...]) -> str:
    """Take the innermost part that a fault names out of the data; returns its dotted name."""
    path: list[str] = []
    for key, after in itertools.zip_longest(loc, loc[1:]):
        path.append(str(key))
        inner = data[key]
        inside = isinstance(inner, list | dict) and after is not None
        if inside and (after in inner if isinstance(inner, dict) else isinstance(after, int)):
            data = inner
        else:
            del data[key]
            break
    return ".".join(path)
