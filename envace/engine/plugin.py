"""Loaded at the end of `import verl` in every process of a training run (VERL_USE_EXTERNAL_MODULES).

It registers the trainer, the agent loop, the advantage estimator's name, and, on a machine without an
accelerator, the CPU platform, the FSDP2 engine over gloo and the `hf` rollout server. Invariant: each
registration happens when the registry's module is first imported, so that a process pays only for what it
uses. A run has a dozen processes, and importing the trainer in each would cost more than a step.
"""

import importlib
import os
from types import ModuleType

from wrapt import when_imported


def load_with(module: str, ours: str) -> None:
    """Import our module as soon as verl's is imported."""
    when_imported(module)(lambda _: importlib.import_module(ours))


def _register_server(replica: ModuleType) -> None:
    hf = "envace.engine.hf_rollout"
    replica.RolloutReplicaRegistry.register("hf", lambda: importlib.import_module(hf).HFReplica)


def _register_adapter(base: ModuleType) -> None:
    # the one registry of verl without a function to register with; it holds names, not classes
    base._ROLLOUT_REGISTRY[("hf", "async")] = "envace.engine.hf_rollout.HFAdapter"


load_with("verl.trainer.ppo.v1", "envace.engine.trainer")
load_with("verl.experimental.agent_loop.agent_loop", "envace.engine.agent_loop")
if os.environ.get("VERL_PLATFORM") == "cpu":
    from envace.engine import cpu_platform  # noqa: F401  # at once: verl asks for a device while it loads

    load_with("verl.workers.engine.fsdp.transformer_impl", "envace.engine.cpu_engine")
    when_imported("verl.workers.rollout.replica")(_register_server)
    when_imported("verl.workers.rollout.base")(_register_adapter)
