"""params.yaml -> frozen dataclasses, checked before anything heavy is imported.

Flows in: the YAML text the user edits. Flows out: `Params`, every value typed and inside its range.
Invariant: an unknown, misspelt, mistyped or out-of-range value raises `ParamsError` with one sentence naming
the key, the value and, for a key, the nearest valid one. Nothing here imports torch, verl, Prefect or MLflow.
The keys stand in `envace.config.sections`, the reading of one value in `envace.config.read`, what values must be to each
other in `envace.config.check`.
"""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import yaml

from envace.config.check import cross_check
from envace.config.read import kind, record
from envace.config.sections import Params
from envace.errors import ParamsError


def load(path: str | Path = "params.yaml") -> Params:
    """Read and check a parameter file. Raises ParamsError."""
    path = Path(path)
    if not path.is_file():
        raise ParamsError(
            f"{path} does not exist: run from the project's folder, or restore it with `make size NAME=laptop`"
        )
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ParamsError(f"{path} is not valid YAML{where}: {getattr(e, 'problem', None) or e}") from None
    return parse(data, str(path))


def parse(data: Any, where: str = "params.yaml") -> Params:
    """Plain data -> Params. Raises ParamsError on the first value that cannot be used."""
    if not isinstance(data, dict):
        raise ParamsError(f"{where} must hold a mapping of sections, not {kind(data)}")
    params = record(Params, data, "", where)
    cross_check(params, where)
    return params


# --- writing ------------------------------------------------------------------------------------------------


def to_dict(value: Any) -> Any:
    """Params (or a section) as plain data, tuples as lists."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_dict(v) for v in value]
    if isinstance(value, (dict, types.MappingProxyType)):
        return {k: to_dict(v) for k, v in value.items()}
    return value


def flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> dotted keys, as MLflow parameters: {"train.lr": 1e-4, ...}."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, name + "."))
        else:
            flat[name] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return flat
