"""FinMCP-Bench's scores: which tools were called, as multisets over a whole conversation.

TP, TR and TF1 (micro), the macro variants and EMR in both readings, for each subset, for all of them, and by
level and scenery; strict and upstream side by side.
Invariant: every score is a function of sums over samples, so that micro scores are resampled by whole tasks
and recomputed, never averaged. `strict` misses all gold calls of a conversation in which the agent failed;
`upstream` is computed over the conversations that ended without an error, as the published scorer does; both
are withheld below completeness. What spans subsets is withheld while one of them was not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from envace.bench.finmcp.rows import FinMcpRow
from envace.bench.scoring import Scoring
from envace.bench.stats import LEVEL, Interval
from envace.bench.summary import DO_NOTHING, HAS_SCORE, WITHHELD, complete_enough, counted
from envace.types import SampleRecord, SampleStatus, ScoreRecord

COUNTS = ("tp", "fp", "fn", "one", "emr", "emr_described", "precision", "recall", "f1")
"""Order of a sample's numbers; `one` counts samples."""
SCORES = ("tp", "tr", "tf1", "macro_tp", "macro_tr", "macro_tf1", "emr", "emr_described")
"""TP, TR and TF1 are the published table's: micro precision, recall and F1."""
Groups = Sequence[Sequence[str]]


def counts(gold: Groups, predicted: Groups) -> dict[str, float]:
    """What one conversation adds to each sum.

    `emr` is what the published code compares: the flat lists of names are equal. `emr_described` is what the
    paper says: calls that the gold conversation makes in parallel may come in any order.
    """
    want, got = [n for g in gold for n in g], [n for g in predicted for n in g]
    hits = sum((Counter(want) & Counter(got)).values())
    rest = iter(got)
    same = all(Counter(group) == Counter([n for _, n in zip(group, rest)]) for group in gold)
    made: dict[str, float] = {"tp": hits, "fp": len(got) - hits, "fn": len(want) - hits, "one": 1}
    made |= {"emr": want == got, "emr_described": len(want) == len(got) and same}
    made |= {"precision": hits / max(len(got), 1), "recall": hits / max(len(want), 1)}
    made |= {"f1": 2 * hits / max(len(got) + len(want), 1)}
    return {name: float(value) for name, value in made.items()}


def nothing(gold: Groups) -> dict[str, float]:
    """What a conversation adds in which the agent broke the rules: its gold calls are all missed."""
    return counts(gold, []) | {"emr": 0.0, "emr_described": 0.0}


def scored(sums: np.ndarray) -> np.ndarray:
    """[..., COUNTS] sums -> [..., SCORES]. A ratio of nothing is 0."""
    tp, fp, fn, one, emr, described, precision, recall, f1 = np.moveaxis(sums, -1, 0)
    pairs = [(tp, tp + fp), (tp, tp + fn), (2 * tp, 2 * tp + fp + fn)]
    pairs += [(x, one) for x in (precision, recall, f1, emr, described)]
    return np.stack([np.divide(a, b, out=np.zeros_like(a), where=b > 0) for a, b in pairs], axis=-1)


def estimate(by_task: Mapping[str, Sequence[Mapping[str, float]]], n: int, seed: int) -> dict[str, Interval]:
    """Every score with its 95 % interval from `n` resamples of whole tasks, recomputed from the resampled
    sums.
    """
    sums = np.array([[sum(s[c] for s in by_task[t]) for c in COUNTS] for t in sorted(by_task)])
    scores = scored(sums.sum(axis=0))
    if len(sums) < 2 or n < 1:
        return {name: (float(s), None, None) for name, s in zip(SCORES, scores)}
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=n)
    low, high = np.quantile(scored(times @ sums), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return {name: (float(s), float(a), float(b)) for name, s, a, b in zip(SCORES, scores, low, high)}


def records(
    subsets: Sequence[str],
    samples: Sequence[SampleRecord],
    rows: Mapping[str, FinMcpRow],
    *,
    absent: tuple[str, ...] = (),
    **how: Unpack[Scoring],
) -> list[ScoreRecord]:
    """absent: subsets that were not run, with the reason."""
    n, least = how.pop("bootstrap", 2000), how.pop("min_complete", 1.0)
    groups: dict[str, list[SampleRecord]] = {s: [] for s in subsets} | {"all": list(samples)}
    for sample in samples:
        row = rows[sample.task]
        for name in (row.subset, f"level-{row.level}", f"scenery-{row.scenery}"):
            groups.setdefault(name, []).append(sample)
    made = []
    for name, own in ((name, own) for name, own in groups.items() if own):
        lacking = () if name in subsets else absent
        withheld = bool(lacking) or not complete_enough(own, least)
        # a conversation without gold calls is matched by calling nothing
        idle = sum(not rows[s.task].gold for s in own) / len(own)
        for source in ("strict", "upstream"):
            values = {} if withheld else _values(own, source, n, how.get("seed", 0))
            shared = {**how, "source": source, "skipped": lacking, **counted(own)}
            for metric in SCORES:
                score, low, high = values.get(metric, WITHHELD)
                floor = {DO_NOTHING: idle if metric.startswith("emr") else 0.0}
                number = {"metric": metric, "score": score, "low": low, "high": high, "floors": floor}
                made.append(ScoreRecord(benchmark="finmcp", subset=name, **number, **shared))
    return made


def _values(own: Sequence[SampleRecord], source: str, n: int, seed: int) -> dict[str, Interval]:
    """Metric -> score; the published scorer takes a call left in the text for an answer."""
    by_task: dict[str, list[dict[str, float]]] = {}
    prefix = "upstream_" if source == "upstream" else ""
    for s in own:
        printed = s.status is SampleStatus.SCORED or "upstream" in s.metrics
        if s.status in HAS_SCORE and (printed or not prefix):
            numbers = {c: s.metrics.get(f"{prefix}{c}", s.metrics[c]) for c in COUNTS}
            by_task.setdefault(s.task, []).append(numbers)
    return estimate(by_task, n, seed) if by_task else {}
