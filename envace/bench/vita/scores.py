"""VitaBench's sample records -> score records: strict and upstream per subset, pass^k and pass@k, two
averages.

Invariant: `strict` counts an agent's failure 0; `upstream` is the mean over what upstream kept, beside it;
both are withheld below completeness, and the averages, with the reasons, unless every domain is there and
complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np

from envace.bench import summary
from envace.bench.scoring import Scoring
from envace.bench.stats import Values, all_succeed, any_succeeds, chances, cluster_bootstrap
from envace.types import SampleRecord, ScoreRecord, replace

METRICS = ("reward", "rubrics", "steps", "calls")
REPEATED = {"pass_hat": all_succeed, "pass_at": any_succeeds}


def records(
    subsets: Sequence[str],
    samples: Sequence[SampleRecord],
    floors: Mapping[str, float],
    *,
    absent: tuple[str, ...] = (),
    **how: Unpack[Scoring],
) -> list[ScoreRecord]:
    """floors: subset -> score of the agent that does nothing. absent: domains that were not asked for."""
    made, n = list[ScoreRecord](), how.get("bootstrap", 2000)
    rewards: dict[str, ScoreRecord] = {}
    values: dict[str, Values] = {}
    for subset in subsets:
        own = [s for s in samples if s.task.startswith(subset + "/")]
        base = summary.summarise(
            own,
            [(s.task, s.trial) for s in own],
            benchmark="vita",
            subset=subset,
            metrics=METRICS,
            floors={"reward": {summary.DO_NOTHING: floors[subset]}},
            **how,
        )
        reward, values[subset] = base[0], summary.values_by_task(own, "reward")
        kept = [s.metrics["upstream"] for s in own if "upstream" in s.metrics and reward.score is not None]
        printed = summary.upstream_record(reward, (float(np.mean(kept)), None, None) if kept else None)
        repeated = _repeated(reward, values[subset], n)
        made += [*base, *repeated, replace(printed, n_scored=len(kept), floors={})]
        rewards[subset] = reward
    if not made:
        return made
    why = [f"{name}: not asked for" for name in absent]
    why += [f"{name}: incomplete" for name, r in rewards.items() if r.score is None]
    parts, counted = list(rewards.values()), None if why else values
    return made + summary.averages(parts, counted, skipped=why, bootstrap=n, all_there=not absent)


def _repeated(base: ScoreRecord, values: Values, bootstrap: int) -> list[ScoreRecord]:
    """pass^k (all of k trials succeed) and pass@k (one of k does), averaged over tasks."""
    made = []
    for k in range(2, base.n_trials + 1):
        there = base.score is not None and all(len(v) >= k for v in values.values())
        for name, of in REPEATED.items():
            score, low, high = summary.WITHHELD
            if there:
                score, low, high = cluster_bootstrap(chances(values, k, of), bootstrap, base.seed)
            made.append(replace(base, metric=f"{name}_{k}", score=score, low=low, high=high, floors={}))
    return made
