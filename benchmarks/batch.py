"""From episodes to micro-batches: CPU of rows, advantages and packing a batch, beside the same out of verl's parts.

Flows in: episodes of both roles. Flows out: a table, and JSON where `--out` says.
Invariant: nothing is timed before both give each generation the same advantage; the order alternates from round to round;
one thread, CPU seconds of this process.

  verl     one row a generation, padded to tensors, `compute_grpo_outcome_advantage` with group and role as its index,
           `get_seqlen_balanced_partitions`: what its trainer does with a batch of several outputs an episode
  envace   rows, merged sequences, role-wise advantages, one vector of token advantages each, micro-batches of like length
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import episodes
from benchmarks.table import alternate, times, write_json
from envace.config.method import Method
from envace.errors import EnvironmentUnready, boundary
from envace.learn.advantage import advantages
from envace.learn.sequences import batch_rows, sequences_of, token_advantages
from envace.types import Episode

PEER, OURS = "verl's parts", "envace"
METHOD = Method(
    baseline="generation", lone="raw", loss_weight="token", rows="merged"
)  # what verl's loop computes
TOLERANCE = 1e-5
Found = tuple[
    list[tuple[str, str, int, float]], list[list[int]]
]  # (group, role, tokens, advantage) each, micro-batches


def ours(played: Sequence[Episode], budget: int, by_length: Any) -> Found:
    sequences = [s for e in played for s in sequences_of(e, METHOD)]
    masks = [np.asarray(s.loss_mask) for s in sequences]
    rows, _ = advantages(batch_rows([s.rows for s in sequences], masks, [True] * len(sequences)), METHOD)
    values = token_advantages(rows, masks, METHOD)
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in sequences]
    parts = by_length(lengths, range(len(lengths)), budget)
    return [(r.group_id, r.role.value, r.length, float(values[r.sequence][r.start])) for r in rows], parts


def verls(played: Sequence[Episode], budget: int, core: Any, torch: Any, partition: Any) -> Found:
    written = [(e, g) for e in played for g in e.generations]
    longest = max(len(g.output_ids) for _, g in written)
    mask = torch.zeros(len(written), longest)
    rewards = torch.zeros(len(written), longest)
    responses = torch.zeros(len(written), longest, dtype=torch.long)
    for k, (e, g) in enumerate(written):
        n = len(g.output_ids)
        responses[k, :n] = torch.tensor(g.output_ids)
        mask[k, :n], rewards[k, n - 1] = 1, e.reward
    index = np.array([f"{e.group_id}|{g.role.value}" for e, g in written], dtype=object)
    found, _ = core.compute_grpo_outcome_advantage(rewards, mask, index=index, norm_adv_by_std_in_grpo=False)
    lengths = [len(g.prompt_ids) + len(g.output_ids) for _, g in written]
    parts = partition(lengths, max(1, -(-sum(lengths) // budget)), equal_size=False)
    firsts = zip(written, found[:, 0].tolist(), strict=True)
    return [(e.group_id, g.role.value, len(g.output_ids), a) for (e, g), a in firsts], parts


def check_equal(entries: dict[str, Callable[[], Found]]) -> float:
    """Largest difference. Raises ValueError above the tolerance."""
    first, second = (sorted(run()[0]) for run in entries.values())
    if [x[:3] for x in first] != [x[:3] for x in second]:
        raise ValueError("the generations differ: nothing to time")
    worst = max(abs(a[3] - b[3]) for a, b in zip(first, second, strict=True))
    if not worst <= TOLERANCE:
        raise ValueError(f"advantages differ by {worst:g}: nothing to time")
    return worst


def compare(n: int, turns: tuple[int, int], budget: int, rounds: int) -> dict[str, Any]:
    try:
        import torch
        import verl.utils.seqlen_balancing as balancing
        from verl.trainer.ppo import core_algos as core

        from envace.engine.microbatches import by_length
    except ImportError as e:
        raise EnvironmentUnready(f"the peer is not installed: {e}") from None
    torch.set_num_threads(1)
    played = episodes.make(n, turns, head=300, act=100, result=60)
    partition = balancing.get_seqlen_balanced_partitions
    entries: dict[str, Callable[[], Found]] = {
        PEER: lambda: verls(played, budget, core, torch, partition),
        OURS: lambda: ours(played, budget, by_length),
    }
    worst = check_equal(entries)
    spent = alternate(entries, rounds)
    median = {name: 1e3 * statistics.median(values) for name, values in spent.items()}
    generations = sum(len(e.generations) for e in played)
    print(f"\n{n} episodes, {generations} generations, {rounds} rounds, largest difference {worst:.1e}")
    for name, values in spent.items():
        print(
            f"  {name:14} {median[name]:9.1f} ms CPU a batch [{1e3 * min(values):.1f}, {1e3 * max(values):.1f}]"
            f"  {median[PEER] / median[name]:5.2f}x {PEER}"
        )
    return {
        "episodes": n, "generations": generations, "rounds": rounds, "difference": worst, "cpu_s": spent,
        "median_ms": median, "times": times(median, OURS),
    }  # fmt: skip


def main() -> None:
    """Compare the CPU between rollout and update with that of verl's parts."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.batch", description=main.__doc__)
    cli.add_argument("--episodes", type=int, nargs="+", default=[64])
    cli.add_argument("--turns", type=int, nargs=2, default=[3, 20], help="fewest and most ACT generations")
    cli.add_argument("--budget", type=int, default=16_384)
    cli.add_argument("--rounds", type=int, default=7)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.batch"):
        found = [compare(n, tuple(args.turns), args.budget, args.rounds) for n in args.episodes]
        if args.out:
            write_json(args.out, {"results": found}, ("verl", "torch", "numpy"), {})


if __name__ == "__main__":
    sys.exit(main())
