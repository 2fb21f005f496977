"""Two raters' values held against each other: exact agreement, Cohen's kappa, distance of numbers.

Flows in: pairs of values, by row. Flows out: the numbers with 95 % intervals, and a word where one is
missing. Invariant: rows are what is resampled, because items of a row are not independent. A kappa or
interval that is not defined is None, and `kappa_note` says why:

    one_value             both raters gave every item the same one value, so chance alone agrees always
    one_rater_one_value   one rater gave every item one value; kappa is 0 whatever the agreement
    one_row               a single row has no interval
    few_resamples         most resamples have no kappa, so its interval would be one of the others alone
    numbers               weights are compared by their distance
"""

from __future__ import annotations

import numpy as np

from envace.intervals import LEVEL, cluster_bootstrap
from envace.types import JSON

CLOSE = 0.05
"""Weights that differ by no more are the same."""
Pairs = dict[str, list[tuple[str, str]]]
"""Row -> values of the first rater and the second."""


def compare(rows: Pairs, seed: int, resamples: int) -> dict[str, JSON]:
    """Agreement of two raters' values, given by row as pairs."""
    found = _exact({uuid: [float(a == b) for a, b in pairs] for uuid, pairs in rows.items()}, seed, resamples)
    tables = _tables(rows)
    kappa = _kappa(tables.sum(axis=0, keepdims=True))[0]
    low, high, note = _interval(tables, seed, resamples)
    return {**found, "kappa": _number(kappa), "kappa_low": low, "kappa_high": high, "kappa_note": note}


def compare_numbers(rows: dict[str, list[tuple[float, float]]], seed: int, resamples: int) -> dict[str, JSON]:
    """The same for numbers: how many are close, and how far they are apart on average."""
    apart = {uuid: [abs(a - b) for a, b in pairs] for uuid, pairs in rows.items()}
    close = {uuid: [float(d <= CLOSE + 1e-9) for d in gaps] for uuid, gaps in apart.items()}
    mean, low, high = cluster_bootstrap(apart, resamples, seed)
    return {
        **_exact(close, seed, resamples),
        "distance": mean,
        "distance_low": low,
        "distance_high": high,
        "kappa": None,
        "kappa_low": None,
        "kappa_high": None,
        "kappa_note": "numbers",
    }


def _exact(same: dict[str, list[float]], seed: int, resamples: int) -> dict[str, JSON]:
    exact, low, high = cluster_bootstrap(same, resamples, seed)
    items = sum(map(len, same.values()))
    return {"rows": len(same), "items": items, "exact": exact, "exact_low": low, "exact_high": high}


def _tables(rows: Pairs) -> np.ndarray:
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


def _interval(tables: np.ndarray, seed: int, resamples: int) -> tuple[float | None, float | None, str]:
    """Percentile interval over resampled rows, and the word for what is missing or odd."""
    said = tables.sum(axis=0)
    values = [int((said.sum(axis=axis) > 0).sum()) for axis in (0, 1)]
    if max(values) == 1 and np.trace(said) == said.sum():
        return None, None, "one_value"
    note = "one_rater_one_value" if min(values) == 1 else ""
    if len(tables) < 2:
        return None, None, note or "one_row"
    rng = np.random.default_rng(seed)
    draws = [tables[rng.integers(len(tables), size=len(tables))].sum(axis=0)[None] for _ in range(resamples)]
    found = np.concatenate([_kappa(draw) for draw in draws])
    defined = found[np.isfinite(found)]
    if len(defined) < resamples / 2:
        return None, None, note or "few_resamples"
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high), note


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
