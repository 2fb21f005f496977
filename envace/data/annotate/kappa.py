"""Two raters' values held against each other: exact agreement, Cohen's kappa, distance of numbers, each with
a 95 % interval. Rows are what is resampled, because items of a row are not independent.

A kappa or interval that is not defined is None, and `kappa_note` says why:

    one_value             both raters gave every item the same one value, so chance alone agrees always
    one_rater_one_value   one rater gave every item one value; kappa is 0 whatever the agreement
    one_row               a single row has no interval
    few_resamples         most resamples have no kappa, so its interval would be one of the others alone
    numbers               weights are compared by their distance

scikit-learn's kappa takes one pair of raters a call: 2,000 resamples of a field would take two seconds."""

from __future__ import annotations

import numpy as np

from envace.intervals import cluster_bootstrap, edges
from envace.types import JSON

CLOSE = 0.05
"""Weights that differ by no more are the same."""
Pairs = dict[str, list[tuple[str | float, str | float]]]
"""Row -> values of the first rater and the second."""


def compare(rows: Pairs, seed: int, resamples: int, numbers: bool = False) -> dict[str, JSON]:
    """Agreement of two raters' values, or `numbers`."""
    limit = CLOSE + 1e-9
    same = {u: [float(abs(a - b) <= limit if numbers else a == b) for a, b in rows[u]] for u in rows}
    found = {"rows": len(same), "items": sum(map(len, same.values()))}
    found |= _named("exact", *cluster_bootstrap(same, resamples, seed))
    if numbers:
        apart = {u: [abs(a - b) for a, b in pairs] for u, pairs in rows.items()}
        found |= _named("distance", *cluster_bootstrap(apart, resamples, seed))
        return found | _named("kappa", None, None, None) | {"kappa_note": "numbers"}
    values = sorted({v for pairs in rows.values() for pair in pairs for v in pair})
    tables = np.zeros((len(rows), len(values), len(values)))
    for r, uuid in enumerate(sorted(rows)):
        for a, b in rows[uuid]:
            tables[r, values.index(a), values.index(b)] += 1
    [kappa] = _kappa(tables.sum(axis=0, keepdims=True))
    low, high, note = _interval(tables, seed, resamples)
    known = float(kappa) if np.isfinite(kappa) else None
    return found | _named("kappa", known, low, high) | {"kappa_note": note}


def _named(name: str, value: float | None, low: float | None, high: float | None) -> dict[str, JSON]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _kappa(tables: np.ndarray) -> np.ndarray:
    """Cohen's kappa of each table [values, values]; NaN where chance agreement is certain."""
    total = tables.sum(axis=(1, 2))
    same = np.trace(tables, axis1=1, axis2=2) / total
    chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1) / total**2
    sure = 1 - chance < 1e-12
    return np.where(sure, np.nan, (same - chance) / np.where(sure, 1.0, 1 - chance))


def _interval(tables: np.ndarray, seed: int, resamples: int) -> tuple[float | None, float | None, str]:
    """Percentile interval over resampled rows, and the word for what is missing or odd."""
    said, n = tables.sum(axis=0), len(tables)
    values = [int((said.sum(axis=axis) > 0).sum()) for axis in (0, 1)]
    if max(values) == 1 and np.trace(said) == said.sum():
        return None, None, "one_value"
    note = "one_rater_one_value" if min(values) == 1 else ""
    if n < 2:
        return None, None, note or "one_row"
    rng = np.random.default_rng(seed)
    found = _kappa(np.stack([tables[rng.integers(n, size=n)].sum(axis=0) for _ in range(resamples)]))
    defined = found[np.isfinite(found)]
    if len(defined) < resamples / 2:
        return None, None, note or "few_resamples"
    return *edges(defined), note
