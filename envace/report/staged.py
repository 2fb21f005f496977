"""Reads the manifest of the staged rows, part by part.

Flows in: `manifest.json` as plain data, of any format. Flows out: `Staged`; parts that are not what they
should be are named among the problems. Invariant: nothing in a manifest raises; a part that an older format
lacks is empty and no problem."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from envace.config import flatten
from envace.io.redact import Redactor
from envace.report.results import Histogram, Staged, StagedFile
from envace.types import JSON

MANIFEST = "data/staged/manifest.json"
TOTALS = ("read", "kept", "rejected", "more_variants")
LARGEST = 2**53  # a count beyond it is none


def read_staged(manifest: dict[str, JSON], problems: list[str]) -> Staged:
    """What a manifest says; appends a line to `problems` for each part that cannot be used."""
    parts = _Parts(problems)
    source, counts = parts.object(manifest, "source"), parts.object(manifest, "counts")
    params, sizes = parts.object(manifest, "params"), parts.object(manifest, "statistics")
    outputs = parts.object(manifest, "outputs")
    histograms = {name: parts.histogram(sizes, name) for name in sizes}
    return Staged(
        format=parts.whole(manifest, "format"),
        **{key: parts.text(source, key) for key in ("kind", "revision", "licence")},
        uri=Redactor().text(parts.text(source, "uri")),
        files=tuple(parts.file(f, "") for f in parts.list(source, "files")),
        outputs=tuple(parts.file(f, name) for name, f in outputs.items()),
        totals={key: n for key in TOTALS if (n := parts.whole(counts, key)) is not None},
        steps=parts.counts(counts, "steps"),
        reasons=parts.counts(counts, "rejected_by_reason"),
        **{key: parts.counts(counts, key) for key in ("hits", "forms", "tags", "licences", "sources")},
        sizes={name: h for name, h in histograms.items() if h is not None},
        params=flatten(params),
        prompt_length=parts.text(manifest, "prompt_length"),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts by the kind they must be of; an absent one is empty, another kind is a problem."""

    problems: list[str]

    def object(self, data: dict[str, JSON], key: str) -> dict[str, Any]:
        return self._of(dict, data, key, "no object") or {}

    def list(self, data: dict[str, JSON], key: str) -> list[Any]:
        return self._of(list, data, key, "no list") or []

    def text(self, data: dict[str, JSON], key: str) -> str:
        return self._of(str, data, key, "no text") or ""

    def whole(self, data: dict[str, JSON], key: str) -> int | None:
        value = data.get(key)
        if value is None or _is_count(value):
            return value
        self._problem(key, "no count")
        return None

    def counts(self, data: dict[str, JSON], key: str) -> dict[str, int]:
        found = self.object(data, key)
        good = {name: n for name, n in found.items() if _is_count(n)}
        if len(good) < len(found):
            self._problem(key, f"{len(found) - len(good)} entries that are no counts")
        return good

    def file(self, about: Any, name: str) -> StagedFile:
        if not isinstance(about, dict):
            self._problem(name or "source.files", "no object")
            return StagedFile(name=name)
        return StagedFile(
            name=name or self.text(about, "name"),
            rows=self.whole(about, "rows"),
            bytes=self.whole(about, "bytes"),
            sha256=self.text(about, "sha256"),
            version=self.text(about, "version") or self.text(about, "etag"),
        )

    def histogram(self, data: dict[str, JSON], key: str) -> Histogram | None:
        about = self.object(data, key)
        edges, counts = self.list(about, "edges"), self.list(about, "counts")
        rising = all(map(_is_number, edges)) and all(a < b for a, b in itertools.pairwise(edges))
        if not edges or not rising or len(edges) != len(counts) or not all(map(_is_count, counts)):
            self._problem(f"statistics.{key}", "no histogram")
            return None
        return Histogram(edges=tuple(edges), counts=tuple(counts))

    def _of(self, kind: type, data: dict[str, JSON], key: str, words: str) -> Any:
        value = data.get(key)
        if value is None or isinstance(value, kind):
            return value
        self._problem(key, words)
        return None

    def _problem(self, what: str, words: str) -> None:
        self.problems.append(f"{MANIFEST}: {what} holds {words}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0
