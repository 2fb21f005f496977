"""FinMCP-Bench's scores: which tools were called, as multisets over a whole conversation.

Flows in: gold and predicted names, in groups of parallel calls. Flows out: counts a sample, scores of a set of
samples, intervals.
Invariant: every score is a function of sums over samples, so that micro scores are resampled by whole tasks and
recomputed, never averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from envace.bench.stats import LEVEL

# order of a sample's numbers; `one` counts samples
COUNTS = ("tp", "fp", "fn", "one", "emr", "emr_described", "precision", "recall", "f1")
# name of a score -> what it is. TP, TR and TF1 are the published table's: micro precision, recall and F1.
SCORES = ("tp", "tr", "tf1", "macro_tp", "macro_tr", "macro_tf1", "emr", "emr_described")
Groups = Sequence[Sequence[str]]


def counts(gold: Groups, predicted: Groups) -> dict[str, float]:
    """What one conversation adds to each sum.

    `emr` is what the published code compares: the flat lists of names are equal. `emr_described` is what the paper
    says: calls that the gold conversation makes in parallel may come in any order.
    """
    want, got = [n for g in gold for n in g], [n for g in predicted for n in g]
    hits = sum((Counter(want) & Counter(got)).values())
    fp, fn = len(got) - hits, len(want) - hits
    made = {"tp": hits, "fp": fp, "fn": fn, "one": 1, "emr": want == got, "emr_described": _same(gold, got)}
    precision, recall = _ratio(hits, hits + fp), _ratio(hits, hits + fn)
    made |= {"precision": precision, "recall": recall, "f1": _ratio(2 * hits, 2 * hits + fp + fn)}
    return {name: float(value) for name, value in made.items()}


def nothing(gold: Groups) -> dict[str, float]:
    """What a conversation adds in which the agent broke the rules: its gold calls are all missed."""
    return counts(gold, []) | {"emr": 0.0, "emr_described": 0.0}


def _same(gold: Groups, got: Sequence[str]) -> bool:
    if sum(map(len, gold)) != len(got):
        return False
    at = 0
    for group in gold:
        if Counter(group) != Counter(got[at : at + len(group)]):
            return False
        at += len(group)
    return True


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def scored(sums: np.ndarray) -> np.ndarray:
    """[..., COUNTS] sums -> [..., SCORES]. A ratio of nothing is 0."""
    tp, fp, fn, one, emr, described, precision, recall, f1 = np.moveaxis(sums, -1, 0)
    pairs = [(tp, tp + fp), (tp, tp + fn), (2 * tp, 2 * tp + fp + fn)]
    pairs += [(x, one) for x in (precision, recall, f1, emr, described)]
    return np.stack([np.divide(a, b, out=np.zeros_like(a), where=b > 0) for a, b in pairs], axis=-1)


def estimate(
    by_task: Mapping[str, Sequence[Mapping[str, float]]], n: int, seed: int
) -> dict[str, tuple[float, float | None, float | None]]:
    """Every score with its 95 % interval from `n` resamples of whole tasks, recomputed from the resampled sums."""
    sums = np.array([[sum(s[c] for s in by_task[t]) for c in COUNTS] for t in sorted(by_task)])
    scores = scored(sums.sum(axis=0))
    if len(sums) < 2 or n < 1:
        return {name: (float(s), None, None) for name, s in zip(SCORES, scores)}
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=n)
    low, high = np.quantile(scored(times @ sums), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return {name: (float(s), float(a), float(b)) for name, s, a, b in zip(SCORES, scores, low, high)}
