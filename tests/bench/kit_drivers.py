"""The drivers as modules: programs of the harnesses' interpreters, which nothing of the project imports."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from envace import bench


def driver_of(benchmark: str) -> ModuleType:
    path = Path(bench.__file__).parent / benchmark / "driver.py"
    spec = spec_from_file_location(f"{benchmark}_driver", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
