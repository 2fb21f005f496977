"""How far what the rollout server sampled from lies from what the trainer holds.

Flows in: log-probabilities of tokens, as the server sampled them and as the trainer computes them. Flows out: sums
that add up over ranks and micro-batches, then `gap/...` of a step and a warning where the gap is too large.
Invariant: trained tokens alone count; a gap that is no number is too large. The update itself is never changed: one
update a batch is on-policy only while the two agree, and a reader has to be told when they do not.

gap/probs_mean probs_max        |p - p'| over trained tokens
gap/logprob_mean logprob_max    |log p - log p'| over the same
gap/alarms                      1 in a step whose logprob_mean is above train.max_logprob_gap, else 0
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


def gap_sums(own: torch.Tensor, sampled: torch.Tensor) -> dict[str, float]:
    """Of the trained tokens: how many, and sums and maxima of both differences. Maxima over nothing are 0."""
    own, sampled = own.detach().double(), sampled.detach().double()
    apart = {"probs": (own.exp() - sampled.exp()).abs(), "logprob": (own - sampled).abs()}
    found = {"tokens": float(len(own))}
    for name, value in apart.items():
        found |= {name: float(value.sum()), f"{name}_max": float(value.max()) if len(value) else 0.0}
    return found


def gap_metrics(sums: Mapping[str, float], limit: float) -> dict[str, float]:
    """`gap/...` of a step; empty without a trained token."""
    if not sums.get("tokens"):
        return {}
    found = {f"gap/{name}_mean": sums[name] / sums["tokens"] for name in ("probs", "logprob")}
    found |= {f"gap/{name}_max": sums[f"{name}_max"] for name in ("probs", "logprob")}
    return {**found, "gap/alarms": float(not found["gap/logprob_mean"] <= limit)}  # so is one that is NaN


def gap_warning(metrics: Mapping[str, float], limit: float) -> str:
    """What a person is told of a step with an alarm, and what to do; empty for other steps."""
    if not metrics.get("gap/alarms"):
        return ""
    return (
        f"warning: log-probabilities of the trained tokens differ by {metrics['gap/logprob_mean']:.3g} on average "
        f"between server and trainer, more than train.max_logprob_gap = {limit:g}: the server samples from older "
        "weights, another temperature or lower precision. Stop, see that seconds/sync is there in every step, set "
        "rollout.top_p to 1, and resume; raise the limit only for a gap known to be rounding"
    )
