"""verl's FSDP2 engine and worker on the CPU.

Flows in: verl's own classes. Flows out: an engine registered for device "cpu", and a worker whose process
group uses gloo.
Invariant: the training arithmetic is verl's; only what needs an accelerator (pinned memory, a second backend
in the process group) is stepped around.
"""

from __future__ import annotations

from typing import Any

from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuFsdpEngine(FSDPEngineWithLMHead):
    """The reference model is sharded like the trained one: verl would offload it into pinned memory."""

    def _build_fsdp_module(self, module: Any) -> Any:
        forward_only = self.engine_config.forward_only
        object.__setattr__(self.engine_config, "forward_only", False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            object.__setattr__(self.engine_config, "forward_only", forward_only)


class CpuWorker(ActorRolloutRefWorker):
    """Starts the process group itself: verl would name the CPU twice ("cpu:gloo,cpu:gloo")."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        initialize_global_process_group_ray(backend="cpu:gloo")
