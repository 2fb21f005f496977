"""params.yaml -> `Params`, checked before anything heavy is imported.

Invariant: an unknown, misspelt, repeated, mistyped or out-of-range key or value raises `ParamsError` with one
sentence naming the key, the value and, for a key, the nearest valid one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from envace.config.check import check_tts_served, cross_check
from envace.config.params import Params
from envace.config.values import kind, refusal
from envace.errors import ParamsError


def load(path: str | Path = "params.yaml") -> Params:
    """Read and check a parameter file; what it leaves out is the laptop size's. Raises ParamsError."""
    from ruamel.yaml import YAML  # the trainer's environment parses JSON alone and may lack it
    from ruamel.yaml.error import YAMLError

    path = Path(path)
    if not path.is_file():
        fix = "run from the project's folder, or restore it with `make size NAME=laptop`"
        raise ParamsError(f"{path} does not exist: {fix}")
    try:
        data = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise ParamsError(f"{path} is not valid YAML{where}: {getattr(e, 'problem', None) or e}") from None
    return parse(data, str(path))


def parse(data: object, where: str = "params.yaml") -> Params:
    """Plain data -> Params. Raises ParamsError on the first value that cannot be used."""
    if not isinstance(data, Mapping):
        raise ParamsError(f"{where} must hold a mapping of sections, not {kind(data)}")
    try:
        params = TypeAdapter(Params).validate_python(dict(data))
        cross_check(params)
        if "tts" in data:
            check_tts_served(params)
    except ValidationError as e:
        raise ParamsError(f"{where}: {refusal(e, Params)}") from None
    except ParamsError as e:
        raise ParamsError(f"{where}: {e}") from None
    return params
