"""The card beside exported weights: which policy a folder holds, and proof that it still does. It is written
last and atomically, so a folder with a card is a finished folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from envace.errors import DataError
from envace.io.files import write_text
from envace.types import PolicyRef, from_json, replace, to_json

NAME = "card.json"
BUNDLED = Path(__file__).with_name("start")
"""The desk's own start policy, which comes with the project; `make warmstart` rebuilds it."""


def files_hash(files: Iterable[Path]) -> str:
    """sha256 (hex) over the names, sizes and bytes of files, in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def weights_hash(folder: str | Path) -> str:
    """Hash of the folder's safetensors files. Raises DataError if there is none."""
    files = list(Path(folder).glob("*.safetensors"))
    if not files:
        raise DataError(f"{folder} holds no *.safetensors weights")
    return files_hash(files)


def write_card(folder: str | Path, ref: PolicyRef) -> PolicyRef:
    """Write card.json with the hash of the weights that lie there; returns the ref as written."""
    ref = replace(ref, hash=weights_hash(folder))
    write_text(Path(folder) / NAME, json.dumps(to_json(ref), indent=1, sort_keys=True) + "\n")
    return ref


def write_pointer(folder: str | Path, ref: PolicyRef) -> PolicyRef:
    """A card for weights that lie elsewhere: on the hub at a commit, or behind a server."""
    named = f"{ref.kind} {ref.uri} {ref.revision}".encode()
    ref = replace(ref, hash=hashlib.sha256(named).hexdigest())
    write_text(Path(folder) / NAME, json.dumps(to_json(ref), indent=1, sort_keys=True) + "\n")
    return ref


def read_card(folder: str | Path) -> PolicyRef:
    """The ref of a folder. Raises DataError when the card is missing or is no card."""
    path = Path(folder) / NAME
    if not path.is_file():
        raise DataError(f"{path} does not exist: the folder is no finished policy")
    try:
        return from_json(PolicyRef, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as e:  # bad JSON, bad text and failed validation are all ValueErrors
        raise DataError(f"{path} is not a policy card: {e}") from e
