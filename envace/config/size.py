"""A whole, commented params.yaml out of the defaults and what a file of `sizes/` changes.

The comment of a key is its field's docstring, or what the size's file says beside it. The text is
in the form that DVC writes, so that `dvc exp run -S` changes the lines of its keys alone.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

from pydantic import JsonValue, TypeAdapter
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from envace.config.load import load
from envace.config.params import Params, to_dict
from envace.errors import UserError

SIZES = Path("sizes")
PLAIN = re.compile(r"(?!true|false|null)[A-Za-z_<]([\w ./<>@-]*[\w>/])?")
"""Text that YAML takes without quotes."""


def write_size(name: str, path: Path, folder: Path = SIZES) -> None:
    """Put the size `name` into the parameter file. Raises UserError when there is none of that name."""
    source = folder / f"{name}.yaml"
    if not source.is_file():
        known = " ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise UserError(f"no {source}; there are: {known}")
    path.write_text(whole_text(source), encoding="utf-8")


def whole_text(source: Path) -> str:
    """Every key of `Params` with the values of a size and a comment each."""
    params, written = load(source), source.read_text(encoding="utf-8")
    opening = [line for line in written.split("\n\n")[0].split("\n") if line.startswith("#")]
    lines = _section(Params, to_dict(params), YAML().load(written), "")
    text = "\n".join([*opening, *lines]) + "\n"
    out, dvc_form = io.StringIO(), YAML()
    dvc_form.default_flow_style = False
    dvc_form.dump(dvc_form.load(text), out)
    return out.getvalue()


def _section(record: type, values: dict[str, JsonValue], said: CommentedMap, indent: str) -> list[str]:
    lines = []
    about = TypeAdapter(record).json_schema()
    properties = about.get("properties") or about["$defs"][record.__name__]["properties"]
    for field in dataclasses.fields(record):
        value, own = values[field.name], said.get(field.name, CommentedMap())
        section = type(field.default)
        described = " ".join(properties[field.name].get("description", "").split()).removesuffix(".")
        comment, *more = (_beside(said, field.name) or described).split("\n")
        if dataclasses.is_dataclass(section) and isinstance(value, dict):
            lines += [""] * (not indent) + [f"{indent}{field.name}:"]
            lines += _section(section, value, own, indent + "  ")
            continue
        note = f" # {comment}" if comment else ""
        lines += [""] * (field.name == "arms")
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            lines += [
                f"{indent}{field.name}:{note}",
                *(f"{indent}  {k}: {_flow(v)}" for k, v in value.items()),
            ]
        elif isinstance(value, list) and len(_flow(value)) > 60:  # DVC would break the line
            lines += [f"{indent}{field.name}:{note}", *(f"{indent}- {_flow(v)}" for v in value)]
        else:
            lines.append(f"{indent}{field.name}: {_flow(value)}{note}")
        lines += [f"{indent}{line.strip()}" for line in more if line.strip()]
    return lines


def _beside(said: CommentedMap, key: str) -> str:
    """The comment at the end of a key's line, with the comment lines below it."""
    token = (said.ca.items.get(key) or [None] * 3)[2] if hasattr(said, "ca") else None
    return token.value.lstrip("# ") if token else ""


def _flow(value: JsonValue) -> str:
    """A value on one line, as YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(v) for v in value) + "]"
    if isinstance(value, str) and not PLAIN.fullmatch(value):
        return "'" + value.replace("'", "''") + "'"
    return value if isinstance(value, str) else json.dumps(value)
