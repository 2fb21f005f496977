"""verl's training worker on the CPU.

Flows in: verl's own class. Flows out: a worker whose process group uses gloo.
Invariant: differs from verl's worker in the process group alone.
"""

from __future__ import annotations

from typing import Any

from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine_workers import ActorRolloutRefWorker


class CpuWorker(ActorRolloutRefWorker):
    """Starts the process group itself: verl would name the CPU twice ("cpu:gloo,cpu:gloo")."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        initialize_global_process_group_ray(backend="cpu:gloo")
