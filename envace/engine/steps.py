"""What a step's metrics say of its seconds, its update and its servers.

Flows in: verl's metrics and timers, and what the rollout servers counted. Flows out: `{name: float}`.
Invariant: a name has exactly one slash; the parts of a step add up to it.

seconds/...  step; its parts rollout, old_log_prob, reference, advantage, update, sync, checkpoint, other; and
             between, the time since the step before, which belongs to no step
server/...   the hf servers during the rollout: seconds of work (of the busiest), steps, rows_a_step, and the share
             of prompt tokens that no one had to read again (shared)
loss/... perf/...  of verl's own; loss/entropy on a CPU over the rows that moved a weight, as is gap/...
             (see logprob_gap.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# verl's metrics worth a curve, under our one-slash names
VERL_METRICS = {
    "actor/pg_loss": "loss/policy",
    "actor/kl_loss": "loss/kl",
    "actor/grad_norm": "loss/grad_norm",
    "actor/entropy": "loss/entropy",
    "actor/lr": "loss/lr",
    "perf/max_memory_allocated_gb": "perf/memory_gb",
    "perf/throughput": "perf/tokens_per_second",
}
# the parts of a step, by verl's timers; what is left of the step is seconds/other
TIMERS = {
    "gen": "rollout",
    "old_log_prob": "old_log_prob",
    "ref": "reference",
    "adv": "advantage",
    "update_actor": "update",
    "update_weights": "sync",
    "save_checkpoint": "checkpoint",
}


def step_seconds(timers: Mapping[str, float]) -> dict[str, float]:
    """`seconds/<part>` of a step: the parts, with `other`, add up to `seconds/step`."""
    parts = {ours: float(timers[theirs]) for theirs, ours in TIMERS.items() if theirs in timers}
    whole = float(timers["step"])
    parts |= {"other": whole - sum(parts.values()), "step": whole}
    return {f"seconds/{name}": value for name, value in parts.items()}


def verl_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """verl's metrics that are kept, under our names."""
    return {ours: float(metrics[theirs]) for theirs, ours in VERL_METRICS.items() if theirs in metrics}


def seen_sums(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Sums over the trained tokens of rows that moved a weight, as the CPU engine saw them during the update."""
    head = "actor/seen/"
    return {k.removeprefix(head): float(v) for k, v in metrics.items() if k.startswith(head)}


def server_metrics(
    totals: Sequence[Mapping[str, float]], before: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """`server/...` of one rollout, from each server's counts after it and after the one before (empty at first)."""
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
