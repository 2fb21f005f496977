"""Staged tasks as verl sees them.

verl is given one small record for each task (its index and first messages); the agent loop reads the task
itself from the same file, so that the queue between processes stays light. Invariant: which prompts a step
gets is a function of the seed and the step alone (`step_indices`). A resumed run therefore sees exactly the
prompts an uninterrupted one would, at epoch borders too, and more steps can be asked for later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from torch.utils.data import Dataset

from envace.data.store import read_tasks
from envace.types import JSON, Task


@lru_cache(maxsize=2)
def tasks_of(path: str) -> list[Task]:
    return read_tasks(path)


def step_indices(step: int, batch: int, n_tasks: int, seed: int, shuffle: bool) -> list[int]:
    """Indices of the prompts of optimizer step `step` (1-based): positions (step-1)*batch ... of an endless
    stream in which every pass over the tasks has its own permutation. Raises ValueError without tasks."""
    if n_tasks < 1:
        raise ValueError("no training tasks")
    positions = range((step - 1) * batch, step * batch)
    return [int(_order(p // n_tasks, n_tasks, seed, shuffle)[p % n_tasks]) for p in positions]


@lru_cache(maxsize=4)
def _order(epoch: int, n_tasks: int, seed: int, shuffle: bool) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(n_tasks) if shuffle else np.arange(n_tasks)


class TaskDataset(Dataset[dict[str, JSON]]):
    """The dataset class verl is given through data.custom_cls."""

    def __init__(self, data_files: str | Sequence[str], **verls_other_choices: JSON):
        self.tasks = tasks_of(data_files if isinstance(data_files, str) else list(data_files)[0])

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, i: int) -> dict[str, JSON]:
        task = self.tasks[i]
        prompt = [{"role": m.role, "content": m.content} for m in task.prefix]
        return {"index": i, "task_id": task.id, "data_source": task.source, "raw_prompt": prompt}
