"""VitaBench's sample records -> score records: strict and upstream scores per subset, pass^k and pass@k, two
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
    min_complete: float = 1.0,
    bootstrap: int = 2000,
    **identity: Unpack[summary.Identity],
) -> list[ScoreRecord]:
    """floors: subset -> score of the agent that does nothing. absent: domains that were not asked for."""
    made: list[ScoreRecord] = []
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
            min_complete=min_complete,
            bootstrap=bootstrap,
            **identity,
        )
        rewards[subset], values[subset] = base[0], summary.values_by_task(own, "reward")
        made += [*base, *_repeated(base[0], values[subset], bootstrap), _upstream(base[0], own)]
    if not made:
        return made
    why = [f"{name}: not asked for" for name in absent]
    why += [f"{name}: incomplete" for name, r in rewards.items() if r.score is None]
    return made + summary.averages(
        list(rewards.values()),
        None if why else values,
        skipped=why,
        bootstrap=bootstrap,
        all_there=not absent,
    )


def _repeated(base: ScoreRecord, values: Values, bootstrap: int) -> list[ScoreRecord]:
    """pass^k (all of k trials succeed) and pass@k (one of k does), averaged over tasks."""
    made = []
    for k in range(2, base.n_trials + 1):
        there = base.score is not None and all(len(v) >= k for v in values.values())
        for name, of in REPEATED.items():
            found = (
                cluster_bootstrap(chances(values, k, of), bootstrap, base.seed) if there else summary.WITHHELD
            )
            score, low, high = found
            made.append(replace(base, metric=f"{name}_{k}", score=score, low=low, high=high, floors={}))
    return made


def _upstream(base: ScoreRecord, samples: Sequence[SampleRecord]) -> ScoreRecord:
    """The mean over the simulations upstream kept; what it dropped is not in it."""
    kept = [s.metrics["upstream"] for s in samples if base.score is not None and "upstream" in s.metrics]
    found = (float(np.mean(kept)), None, None) if kept else None
    return replace(summary.upstream_record(base, found), n_scored=len(kept), floors={})
