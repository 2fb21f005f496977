"""verl's training worker on the CPU.

Flows in: verl's own class. Flows out: a worker whose process group uses gloo.
Invariant: differs from verl's worker in the process group and the number of threads alone.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import ActorRolloutRefWorker

from envace.engine.cpu_platform import cores


class CpuWorker(ActorRolloutRefWorker):
    """Starts the process group itself: verl would name the CPU twice ("cpu:gloo,cpu:gloo")."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        initialize_global_process_group_ray(backend="cpu:gloo")
        torch.set_num_threads(cores(int(os.environ["WORLD_SIZE"])))  # nothing else computes during an update
