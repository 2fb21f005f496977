"""verl's FSDP2 engine on the CPU.

Flows in: verl's own class. Flows out: an engine registered for device "cpu".
Invariant: the training arithmetic is verl's; only what needs an accelerator (pinned memory) is stepped around.
"""

from __future__ import annotations

from typing import Any

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


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
