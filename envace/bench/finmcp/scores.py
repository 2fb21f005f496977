"""FinMCP-Bench's sample records -> score records.

Flows in: the completed samples and the rows. Flows out: TP, TR and TF1 (micro), the macro variants and EMR in both
readings, for each subset, for all of them, and by level and scenery; strict and upstream side by side.
Invariant: `strict` misses all gold calls of a conversation in which the agent failed; `upstream` is computed over the
conversations that ended without an error, as the published scorer does; both are withheld below completeness. What
spans subsets is withheld while one of them was not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from envace.bench.finmcp.metrics import COUNTS, SCORES, estimate
from envace.bench.finmcp.rows import Row
from envace.bench.summary import complete_enough
from envace.types import SampleRecord, SampleStatus, ScoreRecord

S = SampleStatus
COUNTED = {"strict": (S.SCORED, S.AGENT_FAILURE), "upstream": (S.SCORED,)}


def records(
    subsets: Sequence[str],
    samples: Sequence[SampleRecord],
    rows: Mapping[str, Row],
    *,
    absent: tuple[str, ...] = (),
    min_complete: float = 1.0,
    bootstrap: int = 2000,
    **identity: Any,
) -> list[ScoreRecord]:
    made = []
    for name, own, derived in _groups(subsets, samples, rows):
        shared = identity | _shared(name, own, rows, absent if derived else ())
        for source, counted in COUNTED.items():
            kept = [
                s for s in own if s.status in counted or (source == "upstream" and "upstream" in s.metrics)
            ]
            refused = not kept or not complete_enough(own, min_complete) or bool(derived and absent)
            made += _scores(kept, refused, source, bootstrap, shared)
    return made


def _groups(
    subsets: Sequence[str], samples: Sequence[SampleRecord], rows: Mapping[str, Row]
) -> list[tuple[str, list[SampleRecord], bool]]:
    """(name, samples, whether it spans subsets): the subsets, all, then levels and sceneries."""
    groups: dict[str, list[SampleRecord]] = {s: [] for s in subsets} | {"all": list(samples)}
    for sample in samples:
        row = rows[sample.task]
        for name in (row.subset, f"level-{row.level}", f"scenery-{row.scenery}"):
            groups.setdefault(name, []).append(sample)
    return [(name, own, name not in subsets) for name, own in groups.items() if own]


def _shared(
    name: str, own: Sequence[SampleRecord], rows: Mapping[str, Row], absent: tuple[str, ...]
) -> dict[str, Any]:
    status = Counter(s.status for s in own)
    return {
        "benchmark": "finmcp",
        "subset": name,
        "n_tasks": len({s.task for s in own}),
        "n_trials": len({s.trial for s in own}),
        "n_scored": status[S.SCORED],
        "n_agent_failure": status[S.AGENT_FAILURE],
        "n_infra_failure": status[S.INFRA_FAILURE],
        "n_missing": status[S.MISSING],
        "skipped": absent,
        "_idle": sum(not rows[s.task].gold for s in own) / len(own),
    }


def _scores(
    kept: Sequence[SampleRecord], refused: bool, source: str, bootstrap: int, shared: Mapping[str, Any]
) -> list[ScoreRecord]:
    shared = dict(shared)
    idle = shared.pop("_idle")  # a conversation without gold calls is matched by calling nothing
    by_task: dict[str, list[Mapping[str, float]]] = {}
    for s in kept:
        by_task.setdefault(s.task, []).append({c: _of(s, c, source) for c in COUNTS})
    values = {} if refused else estimate(by_task, bootstrap, shared.get("seed", 0))
    made = []
    for metric in SCORES:
        score, low, high = values.get(metric, (None, None, None))
        floors = {"do_nothing": idle if metric.startswith("emr") else 0.0}
        made.append(
            ScoreRecord(
                metric=metric, score=score, low=low, high=high, floors=floors, source=source, **shared
            )
        )
    return made


def _of(sample: SampleRecord, count: str, source: str) -> float:
    """A count of a sample; the published scorer's own where it takes for an answer what strict calls a broken call."""
    own = sample.metrics[count]
    return sample.metrics.get(f"upstream_{count}", own) if source == "upstream" else own
