"""Where a training keeps its files: its work folder's name, a fresh start in it, the folder of its Ray."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path

from envace.config import Params, to_dict
from envace.engine import process
from envace.errors import DataError, EnvironmentUnready
from envace.io.files import sha256
from envace.io.processes import ProcessIdentity, identify, proven_dead
from envace.policy.card import read_card
from envace.rollout.prompts import load_prompt_set

PACKAGE = Path(__file__).resolve().parents[1]
SHAPING = ("learn", "rollout", "judge", "chat", "engine")
"""Sub-packages whose code says what is trained ..."""
NOT_SHAPING = ("launch", "process", "work_folder", "checkpoints", "export", "merge", "run_files")
"""... but for these files of `engine`, ..."""
FREE_KEYS = ("runs", "save_every", "keep_every", "rolling", "max_logprob_gap")
"""... and keys of `train` that leave the weights of a step as they are."""
SOCKET_BYTES = 107 - len(
    "/envace-ray-12345678/session_2026-11-30_20-22-46_123456_1234567/sockets/plasma_store"
)
"""What is left of a socket's path for the folder above Ray's."""


def work_key(params: Params, arm: str, seed: int, tasks_file: Path, start: Path) -> str:
    """Names a work folder: data, start weights, prompts, code and all else that shapes training, but under a
    constant learning rate not how many steps.

    More steps then continue where the last run ended; any other change starts afresh. Raises DataError when
    the tasks or the start weights are missing.
    """
    if not tasks_file.is_file():
        raise DataError(f"{tasks_file} does not exist; run the data stage first (make repro)")
    # else every step's rate depends on how many there are
    free = {*FREE_KEYS, "steps"} if params.train.lr_schedule == "constant" else FREE_KEYS
    files = [file for name in SHAPING for file in (PACKAGE / name).rglob("*.py")]
    shape = {
        "method": to_dict(params.resolved_method(arm)),
        "train": {k: v for k, v in to_dict(params.train).items() if k not in free},
        "rollout": to_dict(params.rollout),
        "judge": to_dict(params.judge),
        "seed": seed,
        "rollout_server": params.engine.rollout,
        "ranks": params.engine.nodes * params.engine.gpus_per_node,
        "data": sha256(tasks_file),
        "start": read_card(start).hash,
        "prompts": load_prompt_set(params.rollout.prompt_set).hash,
        "code": code_hash(f for f in files if f.parent.name != "engine" or f.stem not in NOT_SHAPING),
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def code_hash(files: Iterable[Path]) -> str:
    """sha256 over the code of Python files in the order of their paths, without comments and docstrings."""
    return hashlib.sha256("\n".join(map(_code, sorted(files))).encode()).hexdigest()


@cache
def _code(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]
    return f"{file.parent.name}/{file.name}\n{ast.unparse(tree)}"


def _is_text(line: ast.stmt) -> bool:
    text = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return text and isinstance(line.value.value, str)


def start_anew(work: Path, pipeline: str) -> None:
    """Forget what a work folder holds, once for each pipeline that asks: its retries go on where they ended.

    Raises EnvironmentUnready while a training of the folder is alive.
    """
    note = work / "started-anew"
    if note.is_file() and note.read_text() == pipeline:
        return
    process.refuse_second(work)
    process.reap(work)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    note.write_text(pipeline)


@contextmanager
def ray_folder(work: Path) -> Iterator[Path]:
    """A short folder for Ray's sockets and logs, open to its owner alone and gone afterwards; what
    killed runs left of theirs goes first. Raises EnvironmentUnready where a socket's name has no room."""
    bases = [Path(tempfile.gettempdir()), Path("/tmp")]
    for card in {card for base in bases for card in base.glob("envace-ray-*/owner.json")}:
        _clear(card)
    short = [base for base in bases if len(os.fsencode(base)) <= SOCKET_BYTES and os.access(base, os.W_OK)]
    if not short:
        raise EnvironmentUnready(
            f"TMPDIR ({bases[0]}) is too long for Ray's sockets, whose paths may have 107 bytes, and /tmp "
            f"cannot be written: set TMPDIR to a folder of at most {SOCKET_BYTES} characters"
        )
    folder = Path(tempfile.mkdtemp(prefix="envace-ray-", dir=short[0]))
    (folder / "owner.json").write_text(json.dumps({**asdict(identify()), "work": str(work)}))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # its logs are in ours; a socket may vanish while we look


def _clear(card: Path) -> None:
    """Remove the folder of a run that is gone with all its processes; other users' are left alone."""
    try:
        if card.stat().st_uid != os.getuid():
            return
        said = json.loads(card.read_text())
        owner, work = ProcessIdentity.read(said), Path(said["work"])
    except (OSError, ValueError, KeyError):
        return  # being written, or removed, by its owner
    if owner and proven_dead(owner) and not process.running(work):
        shutil.rmtree(card.parent, ignore_errors=True)
