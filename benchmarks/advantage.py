"""Group advantages of one batch: ours beside verl's loop and verl's vectorised function.

Nothing is timed before all three agree on every advantage. verl offers no number a row, so both are spread
over tokens. Ours takes text ids, as the trainer has them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

from benchmarks.measure import alternate, report
from envace.learn.advantage import role_advantages

LOOP, VECTORISED, OURS = "verl loop", "verl vectorised", "envace"
TOLERANCE = 1e-5  # verl works in float32
Batch = dict[str, np.ndarray]
Entries = dict[str, Callable[[], torch.Tensor]]


def make_batch(rows: int, tokens: int, seed: int = 0) -> Batch:
    """About `rows` rows: prompts of 4 episodes, 1 to 20 ACT and 0 to 10 REHEARSE generations each."""
    rng = np.random.default_rng(seed)
    n_act, n_rehearse = rng.integers(1, 21, rows), rng.integers(0, 11, rows)
    episodes = int(np.searchsorted((n_act + n_rehearse).cumsum(), rows)) + 1
    counts = np.stack([n_act[:episodes], n_rehearse[:episodes]], 1).ravel()
    pair_R = np.repeat(np.arange(2 * episodes), counts)[:rows]
    episode_R, role_R = pair_R // 2, np.array(["act", "rehearse"], dtype=object)[pair_R % 2]
    group_R = np.array([f"prompt-{e // 4}" for e in episode_R], dtype=object)
    return {
        "reward": rng.random(episodes)[episode_R],
        "group": group_R,
        "role": role_R,
        "episode": np.array([f"episode-{e}" for e in episode_R], dtype=object),
        "index": group_R + "|" + role_R,
        "length": rng.integers(1, tokens + 1, rows),
    }


def entries(batch: Batch, core: ModuleType, tokens: int) -> Entries:
    """Each gives advantages of [rows, tokens], zero behind a row's end."""
    length = torch.tensor(batch["length"])
    mask = (torch.arange(tokens)[None] < length[:, None]).float()
    reward = torch.zeros_like(mask)
    reward[torch.arange(len(mask)), length - 1] = torch.tensor(batch["reward"], dtype=torch.float32)
    args = {"index": batch["index"], "norm_adv_by_std_in_grpo": False}

    def ours() -> torch.Tensor:
        ids = [batch[name].tolist() for name in ("group", "role", "episode")]
        advantage_R, _ = role_advantages(batch["reward"], *ids, baseline="generation", lone="raw")
        return torch.from_numpy(advantage_R).float()[:, None] * mask

    return {
        LOOP: lambda: core.compute_grpo_outcome_advantage(reward, mask, **args)[0],
        VECTORISED: lambda: core.compute_grpo_vectorized_outcome_advantage(reward, mask, **args)[0],
        OURS: ours,
    }


def check_equal(found: Entries) -> float:
    """Largest difference from verl's loop. Raises ValueError above the tolerance."""
    want = np.asarray(found[LOOP]())
    worst = max(float(np.abs(np.asarray(run()) - want).max()) for run in found.values())
    if not worst <= TOLERANCE:
        raise ValueError(f"results differ by {worst:g}: nothing to time")
    return worst


def main(quick: bool = False) -> None:
    from verl.trainer.ppo import core_algos as core

    torch.set_num_threads(1)
    for rows in (640,) if quick else (640, 10_240):
        found = entries(make_batch(rows, 512), core, 512)
        what = f"{rows} rows x 512 tokens, largest difference {check_equal(found):.1e}"
        report("advantage", what, alternate(found, 3 if quick else 11), OURS, "ms")
