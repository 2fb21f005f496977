"""verl's training worker on the CPU: its process group uses gloo, and it computes on all cores.

A file of its own: verl's worker imports the engine, and ours is loaded while that import is under way.
"""

from __future__ import annotations

import os

import torch
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import ActorRolloutRefWorker

from envace.engine.cpu_platform import cores
from envace.types import JSON


class CpuWorker(ActorRolloutRefWorker):
    """Starts the process group itself: verl would name the CPU twice ("cpu:gloo,cpu:gloo")."""

    def __init__(self, *args: JSON, **kwargs: JSON):
        super().__init__(*args, **kwargs)
        initialize_global_process_group_ray(backend="cpu:gloo")
        torch.set_num_threads(cores(int(os.environ["WORLD_SIZE"])))  # nothing else computes during an update
