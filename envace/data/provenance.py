"""Where a row came from, under which licence, and who made it.

Flows in: a row as its source has it, the file it stands in, the licence of the whole source. Flows out: what is
stored of it in `extra_info`, all of it text: `licence`, `origin`, `generator`, `annotator`.
Invariant: nothing of it depends on the place of the row in its file, so a source in another order gives the same
bytes; `origin` and `uuid` together name one row of the source that the manifest describes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from envace.data.forms import Row, without_nulls

KEYS = ("licence", "origin", "generator", "annotator")
UNSIGNED: dict[str, str | None] = dict.fromkeys(KEYS)
STATED = {"licence": ("licence", "license"), "generator": ("generator",), "annotator": ("annotator",)}


def provenance(row: Row, where: str, licence: str) -> dict[str, str | None]:
    """What is stored of a row read at `where` (`a.jsonl:3`); `licence` is that of rows which state none."""
    extra = row.get("extra_info")
    places = [row, extra] if isinstance(extra, dict) else [row]
    said = {key: _first(places, names) for key, names in STATED.items()}
    return said | {"licence": said["licence"] or licence, "origin": where.rpartition(":")[0] or where}


def _first(places: list[Row], names: tuple[str, ...]) -> str | None:
    found = (_text(place.get(name)) for place in places for name in names)
    return next((text for text in found if text), None)


def _text(value: Any) -> str:
    """Text as it is, other data as JSON text in one spelling, nothing as nothing."""
    if isinstance(value, str) or not value:
        return value or ""
    try:
        return msgspec.json.encode(without_nulls(value), order="sorted").decode()
    except RecursionError:
        return "nested too deep to be kept"
