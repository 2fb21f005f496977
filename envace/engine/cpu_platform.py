"""verl's idea of an accelerator, answered by the CPU.

Flows in: verl's questions about devices. Flows out: a registered platform named "cpu".
Invariant: `current_device` is a torch.device, never an index (verl passes it to `.to()`, where an integer
would mean a CUDA device); memory figures are those of the process and the machine.
"""

from __future__ import annotations

import os
import types
from contextlib import AbstractContextManager, nullcontext

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

CPU = torch.device("cpu")
MEMORY = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
HOUSEKEEPING = ("empty_cache", "ipc_collect", "synchronize", "set_device", "reset_peak_memory_stats")


def cores(processes: int = 1) -> int:
    """Cores each of so many processes may compute on at the same time, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def _nothing(*args: object, **kwargs: object) -> None:
    """Device housekeeping that a CPU does not need."""


def _resident(*args: object, **kwargs: object) -> int:
    return psutil.Process().memory_info().rss


def _memory(*args: object, **kwargs: object) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _device_module() -> types.ModuleType:
    """torch.cpu with the calls that torch.cuda has besides."""
    module = types.ModuleType("envace_cpu_device")
    answers = dict.fromkeys(MEMORY, _resident) | dict.fromkeys(HOUSEKEEPING, _nothing)
    answers |= {
        "__getattr__": lambda name: getattr(torch.cpu, name),
        "mem_get_info": _memory,
        "current_device": lambda: CPU,
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "get_rng_state": lambda *a, **k: torch.get_rng_state(),
        "set_rng_state": lambda state, *a, **k: torch.set_rng_state(state),
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_device_name": lambda *a, **k: "CPU",
    }
    vars(module).update(answers)
    return module


DEVICE_MODULE = _device_module()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The platform VERL_PLATFORM=cpu selects."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: DEVICE_MODULE)
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return os.environ.get("VERL_PLATFORM") == "cpu"

    def current_device(self) -> torch.device:
        return CPU

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"  # logical: Ray counts verl's workers in it

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights travel through shared memory
