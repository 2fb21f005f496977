"""Group advantages of one batch: ours beside verl's loop and verl's vectorised function.

Flows in: a synthetic batch of both roles. Flows out: a table, and JSON where `--out` says.
Invariant: nothing is timed before all three agree on the advantages; the order alternates from round to round;
one thread, CPU seconds of this process.

Two quantities, because a benchmark that broadcasts to tokens measures the broadcast:
  scalar  ids and rewards -> one number a row. verl has no such entry, so it gets a token axis of length 1.
  tokens  the same, spread over [rows, tokens] with the mask, which is all verl's functions offer.
Ours takes text ids (as the trainer has them) and, as `ids ready`, integer ids.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import alternate, quartiles, times, write_json
from envace.errors import EnvironmentUnready, boundary
from envace.learn.advantage import role_advantages

VERL_LOOP, VERL_VECTORISED = "verl loop", "verl vectorised"
OURS, OURS_READY = "envace", "envace, ids ready"
TOLERANCE = 1e-5  # verl works in float32


def make_batch(rows: int, tokens: int, seed: int = 0) -> dict[str, Any]:
    """About `rows` rows: prompts of 4 episodes, 1 to 20 ACT and 0 to 10 REHEARSE generations each."""
    rng = np.random.default_rng(seed)
    n_act, n_rehearse = rng.integers(1, 21, rows), rng.integers(0, 11, rows)
    episodes = int(np.searchsorted((n_act + n_rehearse).cumsum(), rows)) + 1
    counts = np.stack([n_act[:episodes], n_rehearse[:episodes]], 1).ravel()
    pair_R = np.repeat(np.arange(2 * episodes), counts)[:rows]
    episode_R, role_R = pair_R // 2, pair_R % 2
    group_R = episode_R // 4
    length_R = rng.integers(1, tokens + 1, rows)
    return {
        "reward": rng.random(episodes)[episode_R],
        "ids": (group_R, role_R, episode_R),
        "text": (
            [f"prompt-{g}" for g in group_R.tolist()],
            [("act", "rehearse")[r] for r in role_R.tolist()],
            [f"prompt-{e // 4}-{e % 4}" for e in episode_R.tolist()],
        ),
        "index": np.array([f"prompt-{g}|{r}" for g, r in zip(group_R, role_R)], dtype=object),
        "length": length_R,
    }


def ours(batch: dict[str, Any], ids: str) -> np.ndarray:
    return role_advantages(batch["reward"], *batch[ids], baseline="generation", lone="raw")[0]


def scalar_entries(batch: dict[str, Any], core: Any, torch: Any) -> dict[str, Callable[[], Any]]:
    reward, ones = (
        torch.tensor(batch["reward"], dtype=torch.float32)[:, None],
        torch.ones(len(batch["reward"]), 1),
    )
    args = {"index": batch["index"], "norm_adv_by_std_in_grpo": False}
    return {
        VERL_LOOP: lambda: core.compute_grpo_outcome_advantage(reward, ones, **args)[0][:, 0],
        VERL_VECTORISED: lambda: core.compute_grpo_vectorized_outcome_advantage(reward, ones, **args)[0][
            :, 0
        ],
        OURS: lambda: ours(batch, "text"),
        OURS_READY: lambda: ours(batch, "ids"),
    }


def token_entries(batch: dict[str, Any], core: Any, torch: Any, tokens: int) -> dict[str, Callable[[], Any]]:
    length = torch.tensor(batch["length"])
    mask = (torch.arange(tokens)[None] < length[:, None]).float()
    reward = torch.zeros_like(mask)
    reward[torch.arange(len(mask)), length - 1] = torch.tensor(batch["reward"], dtype=torch.float32)
    args = {"index": batch["index"], "norm_adv_by_std_in_grpo": False}

    def spread(ids: str) -> Any:
        return torch.from_numpy(ours(batch, ids)).float()[:, None] * mask

    return {
        VERL_LOOP: lambda: core.compute_grpo_outcome_advantage(reward, mask, **args)[0],
        VERL_VECTORISED: lambda: core.compute_grpo_vectorized_outcome_advantage(reward, mask, **args)[0],
        OURS: lambda: spread("text"),
        OURS_READY: lambda: spread("ids"),
    }


def check_equal(entries: dict[str, Callable[[], Any]]) -> float:
    """Largest difference from verl's loop. Raises ValueError above the tolerance."""
    want = np.asarray(entries[VERL_LOOP]())
    worst = max(float(np.abs(np.asarray(run()) - want).max()) for run in entries.values())
    if not worst <= TOLERANCE:
        raise ValueError(f"results differ by {worst:g}: nothing to time")
    return worst


def measure(entries: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds of each round."""
    return {name: [1e3 * s for s in spent] for name, spent in alternate(entries, rounds).items()}


def report(
    what: str, rows: int, tokens: int, entries: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, Any]:
    worst = check_equal(entries)
    spent = measure(entries, rounds)
    median = {name: statistics.median(values) for name, values in spent.items()}
    print(f"\n{what}: {rows} rows x {tokens} tokens, {rounds} rounds, largest difference {worst:.1e}")
    for name, values in spent.items():
        low, high = quartiles(values)
        less = median[VERL_LOOP] / median[name] if median[name] else float("inf")
        print(
            f"  {name:20} {median[name]:9.3f} ms  (quartiles {low:.3f} to {high:.3f})  {less:7.1f}x less than verl's loop"
        )
    return {
        "what": what,
        "rows": rows,
        "tokens": tokens,
        "rounds": rounds,
        "difference": worst,
        "median_ms": median,
        "times": times(median, OURS),
        "times_ids_ready": times(median, OURS_READY),
    }


def main() -> None:
    """Compare group advantages with verl's."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.advantage", description=main.__doc__)
    cli.add_argument("--rows", type=int, nargs="+", default=[640, 10240, 102_400])
    cli.add_argument("--tokens", type=int, default=512)
    cli.add_argument("--rounds", type=int, default=11)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.advantage"):
        try:
            import torch
            from verl.trainer.ppo import core_algos as core
        except ImportError as e:
            raise EnvironmentUnready(f"the peer is not installed: {e}") from None
        torch.set_num_threads(1)
        found = []
        for rows in args.rows:
            batch = make_batch(rows, args.tokens)
            found.append(report("scalar", rows, 1, scalar_entries(batch, core, torch), args.rounds))
            entries = token_entries(batch, core, torch, args.tokens)
            found.append(report("tokens", rows, args.tokens, entries, args.rounds))
        if args.out:
            write_json(args.out, {"results": found}, ("verl", "torch", "numpy"), {})


if __name__ == "__main__":
    sys.exit(main())
