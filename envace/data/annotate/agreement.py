"""How far labels agree with a person's.

Flows in: a file labelled by hand and an annotated one. Flows out: for each compared field the exact agreement and
Cohen's kappa, both with 95 % intervals.
Invariant: items are matched by row, turn and id, never by order; what is in one file only is counted, not compared.
Rows are what is resampled, because items of a row are not independent. Kappa is None where it is not defined: when
chance alone would make both agree always.

A row of the hand-labelled file is either an annotated row a person corrected, or
{"uuid": "u-1", "items": [{"turn": 0, "id": "C0", "focus_on": "...", "required_for_next_turn": true, "verdict": true}]}
with any of the three. A `verdict` says whether the item is right: met by the recorded dialogue and fit to grade
others by. An annotated item claims that it is, unless it has a `verdict` of its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from envace.bench.stats import LEVEL, cluster_bootstrap
from envace.data.readers import READERS
from envace.errors import DataError
from envace.types import JSON

FIELDS = ("verdict", "focus_on", "required_for_next_turn")
RESAMPLES = 2000
Items = dict[tuple[int, str], dict[str, JSON]]  # (turn, id) -> item


def agreement(hand: Path, annotated: Path, seed: int = 7, resamples: int = RESAMPLES) -> dict[str, JSON]:
    """Compare two files. Raises DataError when one cannot be read or nothing can be compared."""
    by_hand, by_model = _rows(hand), _rows(annotated)
    shared = sorted(by_hand.keys() & by_model.keys())
    pairs: dict[str, dict[str, list[tuple[str, str]]]] = {f: defaultdict(list) for f in FIELDS}
    unmatched = 0
    for uuid in shared:
        mine, theirs = by_hand[uuid], by_model[uuid]
        unmatched += len(mine.keys() - theirs.keys())
        for spot in sorted(mine.keys() & theirs.keys()):
            for name in FIELDS:
                if name in mine[spot]:
                    pairs[name][uuid].append((_value(mine[spot], name), _value(theirs[spot], name)))
    if not any(pairs.values()):
        raise DataError(
            f"{hand} and {annotated} share no item to compare; check that uuid, turn and id are those of {annotated.name}"
        )
    return {
        "rows": {"hand": len(by_hand), "annotated": len(by_model), "compared": len(shared)},
        "items_only_by_hand": unmatched,
        "fields": {name: compare(rows, seed, resamples) for name, rows in pairs.items() if rows},
    }


def compare(rows: dict[str, list[tuple[str, str]]], seed: int, resamples: int) -> dict[str, JSON]:
    """Agreement of two raters' values, given by row as pairs."""
    same = {uuid: [float(a == b) for a, b in pairs] for uuid, pairs in rows.items()}
    exact, low, high = cluster_bootstrap(same, resamples, seed)
    tables = _tables(rows)
    kappa = _kappa(tables.sum(axis=0, keepdims=True))[0]
    k_low, k_high = _interval(tables, seed, resamples)
    return {
        "rows": len(rows), "items": sum(map(len, rows.values())),
        "exact": exact, "exact_low": low, "exact_high": high,
        "kappa": _number(kappa), "kappa_low": k_low, "kappa_high": k_high,
    }  # fmt: skip


def _tables(rows: dict[str, list[tuple[str, str]]]) -> np.ndarray:
    """[rows, values, values]: how often the first rater said this and the second that."""
    values = sorted({v for pairs in rows.values() for pair in pairs for v in pair})
    at = {v: k for k, v in enumerate(values)}
    tables = np.zeros((len(rows), len(values), len(values)))
    for r, uuid in enumerate(sorted(rows)):
        for a, b in rows[uuid]:
            tables[r, at[a], at[b]] += 1
    return tables


def _kappa(tables: np.ndarray) -> np.ndarray:
    """Cohen's kappa of each table; NaN where chance agreement is certain."""
    total = tables.sum(axis=(1, 2))
    same = np.trace(tables, axis1=1, axis2=2) / total
    chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1) / total**2
    open_ = 1 - chance
    sure = open_ < 1e-12
    return np.where(sure, np.nan, (same - chance) / np.where(sure, 1.0, open_))


def _interval(tables: np.ndarray, seed: int, resamples: int) -> tuple[float | None, float | None]:
    """Percentile interval over resampled rows; None with one row, or where most resamples have no kappa."""
    if len(tables) < 2:
        return None, None
    rng = np.random.default_rng(seed)
    found = np.concatenate(
        [
            _kappa(tables[rng.integers(len(tables), size=len(tables))].sum(axis=0)[None])
            for _ in range(resamples)
        ]
    )
    defined = found[np.isfinite(found)]
    if len(defined) < resamples / 2:
        return None, None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _value(item: dict[str, JSON], name: str) -> str:
    return json.dumps(item.get(name, True) if name == "verdict" else item.get(name))


def _rows(path: Path) -> dict[str, Items]:
    if path.suffix not in READERS or not path.is_file():
        raise DataError(f"{path} cannot be read; name a file that ends in {', '.join(sorted(READERS))}")
    found: dict[str, Items] = {}
    for raw in READERS[path.suffix](path, path.name):
        row = raw.row
        if raw.fault or not isinstance(row.get("uuid"), str):
            raise DataError(
                f"{raw.where} is no labelled row: {raw.fault.message if raw.fault else 'it has no uuid'}; correct it"
            )
        found[row["uuid"]] = dict(_items(row, raw.where))
    return found


def _items(row: dict[str, Any], where: str) -> Iterator[tuple[tuple[int, str], dict[str, JSON]]]:
    try:
        if "items" in row:
            for item in row["items"]:
                yield (item["turn"], item["id"]), {k: item[k] for k in FIELDS if k in item}
            return
        for t, items in enumerate(row["checklists"][0]):
            for item in items:
                yield (t, item["id"]), {"verdict": True, **{k: item[k] for k in FIELDS if k in item}}
    except (KeyError, TypeError, IndexError):
        raise DataError(f"{where} has neither items with turn and id nor checklists; correct it") from None


def text(found: dict[str, JSON]) -> str:
    """The table for people."""
    r = found["rows"]
    out = [
        f"{r['compared']} rows compared ({r['hand']} by hand, {r['annotated']} annotated), {found['items_only_by_hand']} hand-labelled items not found"
    ]
    out.append(f"{'field':<24}{'items':>7}  {'exact':<22}{'kappa':<22}")
    for name, f in found["fields"].items():
        exact = _said(f["exact"], f["exact_low"], f["exact_high"])
        out.append(
            f"{name:<24}{f['items']:>7}  {exact:<22}{_said(f['kappa'], f['kappa_low'], f['kappa_high']):<22}"
        )
    return "\n".join(out)


def _said(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "not defined"
    return f"{value:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None else "")
