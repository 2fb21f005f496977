"""Loaded at the end of `import verl` in every process of a training run (VERL_USE_EXTERNAL_MODULES).

Flows in: nothing but the environment. Flows out: registrations in verl's public registries: the trainer, the
agent loop, the advantage estimator's name, and, on a machine without an accelerator, the CPU platform, the
FSDP2 engine over gloo and the `hf` rollout server.
Invariant: importing this module outside a training run registers, and starts, nothing else.
"""

import os

if os.environ.get("VERL_PLATFORM") == "cpu":
    from envace.engine import cpu_platform  # noqa: F401  # first: later imports ask verl which device there is
    from envace.engine import cpu_engine, hf_rollout  # noqa: F401  # isort: skip
from envace.engine import agent, trainer  # noqa: F401
