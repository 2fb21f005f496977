"""What a step's metrics say of its seconds, its update and its servers, and when they stop or warn a run.

Invariant: a name has exactly one slash; the parts of a step add up to it. Of the gap, trained tokens alone
count and one that is no number is too large; the update itself is never changed: one update a batch is
on-policy only while the server and the trainer agree, and a reader has to be told when they do not.

seconds/...  step; its parts rollout, old_log_prob, reference, advantage, update, sync, checkpoint, other; and
             between, the time since the step before, which belongs to no step
server/...   the hf servers during the rollout: seconds of work (of the busiest), steps, rows_a_step, and
             shared, the share of prompt tokens that no one had to read again
gap/...      over trained tokens: |p - p'| (probs_mean, probs_max), |log p - log p'| (logprob_mean,
             logprob_max); alarms is 1 in a step whose logprob_mean is above train.max_logprob_gap, else 0
loss/... perf/...  of verl's own; loss/entropy on a CPU over the rows that moved a weight, as is gap/...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from envace.errors import UserError
from envace.types import JSON, Episode

VERL_METRICS = {
    "actor/pg_loss": "loss/policy",
    "actor/kl_loss": "loss/kl",
    "actor/grad_norm": "loss/grad_norm",
    "actor/entropy": "loss/entropy",
    "actor/lr": "loss/lr",
    "perf/max_memory_allocated_gb": "perf/memory_gb",
    "perf/throughput": "perf/tokens_per_second",
}
"""verl's metrics worth a curve, under our one-slash names."""
TIMERS = {
    "gen": "rollout",
    "old_log_prob": "old_log_prob",
    "ref": "reference",
    "adv": "advantage",
    "update_actor": "update",
    "update_weights": "sync",
    "save_checkpoint": "checkpoint",
}
"""The parts of a step, by verl's timers; what is left of the step is seconds/other."""


def step_seconds(timers: Mapping[str, float]) -> dict[str, float]:
    """`seconds/<part>` of a step: the parts, with `other`, add up to `seconds/step`."""
    parts = {ours: float(timers[theirs]) for theirs, ours in TIMERS.items() if theirs in timers}
    whole = float(timers["step"])
    parts |= {"other": whole - sum(parts.values()), "step": whole}
    return {f"seconds/{name}": value for name, value in parts.items()}


def verl_metrics(metrics: Mapping[str, JSON]) -> dict[str, float]:
    """verl's metrics that are kept, under our names."""
    return {ours: float(metrics[theirs]) for theirs, ours in VERL_METRICS.items() if theirs in metrics}


def seen_sums(metrics: Mapping[str, JSON]) -> dict[str, float]:
    """Sums over the trained tokens of rows that moved a weight, as the CPU engine saw them during
    the update."""
    head = "actor/seen/"
    return {k.removeprefix(head): float(v) for k, v in metrics.items() if k.startswith(head)}


def server_metrics(
    totals: Sequence[Mapping[str, float]], before: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """`server/...` of one rollout, from each server's counts after it and after the one before (empty at
    first).
    """
    new = [
        {k: v - old.get(k, 0) for k, v in now.items()}
        for now, old in zip(totals, before or [{}] * len(totals), strict=True)
    ]
    total = {k: sum(n[k] for n in new) for k in ("steps", "rows", "tokens_in", "tokens_read")}
    found = {"seconds": max(n["seconds"] for n in new), "steps": total["steps"]}
    if total["steps"]:
        found["rows_a_step"] = total["rows"] / total["steps"]
    if total["tokens_in"]:
        found["shared"] = 1 - total["tokens_read"] / total["tokens_in"]
    return {f"server/{name}": float(value) for name, value in found.items()}


def gap_sums(own: torch.Tensor, sampled: torch.Tensor) -> dict[str, float]:
    """Of the trained tokens: how many, and sums and maxima of both differences, which add up over ranks and
    micro-batches. Maxima over nothing are 0."""
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
    mean = metrics["gap/logprob_mean"]
    return (
        f"warning: log-probabilities of the trained tokens differ by {mean:.3g} on average between server "
        f"and trainer, more than train.max_logprob_gap = {limit:g}: the server samples from older weights, "
        "another temperature or lower precision. Stop, see that seconds/sync is there in every step, set "
        "rollout.top_p to 1, and resume; raise the limit only for a gap known to be rounding"
    )


class WeightsNotSynced(UserError):
    """The servers sample from other weights than the trainer holds: an update would be off-policy."""


def check_weights(episodes: Sequence[Episode], step: int) -> None:
    """Raises WeightsNotSynced when a generation of the step was written by other weights than those of the
    step before. A server that does not say is believed, see `check_gaps`."""
    said = {g.weight_version for e in episodes for g in e.generations} - {None, step - 1}
    if said:
        raise WeightsNotSynced(
            f"step {step}: the rollout server wrote with the weights of step {min(said)}, not {step - 1}: "
            "the weight sync failed; resume from the last checkpoint, and see the server's part of the log"
        )


def check_gaps(alarms: int, warning: str) -> None:
    """Raises WeightsNotSynced at the second alarm in a row: one may be an outlier."""
    if alarms > 1:
        raise WeightsNotSynced(f"{alarms} steps in a row; {warning.removeprefix('warning: ')}")


class TooManyUnscored(UserError):
    """The judge, the policy's server or a source fails too often for the reward to mean anything."""


def check_unscored(episodes: Sequence[Episode], limit: float, step: int) -> None:
    """Raises TooManyUnscored when more than a share `limit` of the episodes is unscored; the rate itself is
    endured.

    What counts is why an episode lacks a verdict, not what `unscored` makes of it: a reward of 0 for an
    outage is no reward either.
    """
    lost = [e for e in episodes if e.unscored]
    if len(lost) <= limit * len(episodes):
        return
    why, _ = Counter(e.unscored_reason or e.stop.value for e in lost).most_common(1)[0]
    raise TooManyUnscored(
        f"step {step}: {len(lost)} of {len(episodes)} episodes are unscored (most: {why}), more than "
        f"judge.max_unscored = {limit:g}"
    )
