"""verl's idea of an accelerator, answered by the CPU.

Invariant: `current_device` is a torch.device, never an index (verl passes it to `.to()`, where an integer
would mean a CUDA device); memory figures are those of the process and the machine.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

T = TypeVar("T")
CPU = torch.device("cpu")


def cores(processes: int = 1) -> int:
    """Cores each of so many processes may compute on at the same time, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def _always(value: T) -> Callable[..., T]:
    """A function that answers the same whatever it is asked with."""
    return lambda *args, **kwargs: value


def _resident(*_: int) -> int:
    return psutil.Process().memory_info().rss


def _memory(*_: int) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


DEVICE_MODULE = types.ModuleType("envace_cpu_device")
"""torch.cpu with the calls that torch.cuda has besides."""
vars(DEVICE_MODULE).update(
    **dict.fromkeys(("memory_allocated", "memory_reserved"), _resident),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), _resident),
    **dict.fromkeys(("empty_cache", "ipc_collect", "synchronize", "set_device"), _always(None)),
    reset_peak_memory_stats=_always(None),
    __getattr__=lambda name: getattr(torch.cpu, name),
    mem_get_info=_memory,
    current_device=_always(CPU),
    device_count=_always(1),
    is_available=_always(True),
    get_rng_state=lambda *args, **kwargs: torch.get_rng_state(),
    set_rng_state=lambda state, *args, **kwargs: torch.set_rng_state(state),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_device_name=_always("CPU"),
)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The platform VERL_PLATFORM=cpu selects."""

    device_name = vendor_name = property(_always("cpu"))
    device_module = property(_always(DEVICE_MODULE))
    is_available = _always(True)

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return os.environ.get("VERL_PLATFORM") == "cpu"

    current_device = _always(CPU)
    device_count = _always(1)
    get_device_capability = _always((None, None))
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    # device housekeeping that a CPU does not need
    set_device = synchronize = set_allocator_settings = empty_cache = _always(None)
    profiler_start = profiler_stop = cudart = _always(None)
    nvtx_range = _always(nullcontext())
    communication_backend_name = _always("gloo")
    visible_devices_envvar = _always("CUDA_VISIBLE_DEVICES")
    ray_resource_name = _always("GPU")
    """Logical: Ray counts verl's workers in it."""
    ray_noset_envvars = _always(["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"])
    is_ipc_supported = _always(False)
    """Weights travel through shared memory."""
