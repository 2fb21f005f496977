"""The tasks a built tau² holds: which there are, which of them an evaluation owes, and how they are graded.

Flows in: the task files of a built harness. Flows out: `TaskInfo`s, and the subsets that cannot be had, each
with its reason.
Invariant: a limit picks by hash of seed and id, so it picks the same tasks for every policy; a subset that is
asked for and not available is named with its reason, never dropped in silence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envace.bench.harness.spec import HarnessEnv
from envace.bench.tau2.sources import Options, data_root
from envace.errors import DataError, UserError

SUBSETS = ("airline", "retail", "telecom", "telecom-workflow", "mock", "banking_knowledge")
UNSPLIT = {"banking_knowledge"}  # one task a file, no splits
BASE_ONLY = {"mock"}
DEFAULT_BASIS = ("DB", "COMMUNICATE")  # of a task that names none


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """`TaskInfo(id="7", basis=("DB", "NL_ASSERTION"), assertions=2)`."""

    id: str
    basis: tuple[str, ...]  # what its reward is the product of
    assertions: int  # sentences the judge grades

    @property
    def judged(self) -> bool:
        return "NL_ASSERTION" in self.basis and self.assertions > 0


def unavailable(options: Options, subset: str) -> str:
    """Why a known subset cannot be run with this source and split; "" when it can. UserError for an unknown one."""
    if subset not in SUBSETS:
        raise UserError(f"tau2 has no subset {subset!r}; known are {', '.join(SUBSETS)}")
    if subset in UNSPLIT and options.source == "fork":
        return f"{subset}: not part of the nvidia fork"
    if subset in UNSPLIT | BASE_ONLY and options.split != "base":
        return f"{subset}: has no {options.split} split"
    return ""


def chosen(env: HarnessEnv, options: Options, subset: str, limit: int = 0, seed: int = 0) -> list[TaskInfo]:
    """The tasks of a subset that an evaluation owes, in the harness's order."""
    folder = env.source / data_root(options) / subset.removesuffix("-workflow")
    tasks = [_info(task) for task in _read_tasks(folder, subset)]
    if subset not in UNSPLIT:
        kept = set(_read(folder / "split_tasks.json").get(options.split, ()))
        tasks = [task for task in tasks if task.id in kept]
    if not tasks:
        raise DataError(
            f"tau2's {subset} has no tasks in split {options.split!r} at {env.root}; build it anew"
        )
    return _limited(tasks, limit, seed)


def data_hash(env: HarnessEnv, options: Options, subset: str) -> str:
    """Of every file of the domain: its tasks, splits, database, policies."""
    folder, digest = env.source / data_root(options) / subset.removesuffix("-workflow"), hashlib.sha256()
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        own = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(folder).as_posix()} {own}\n".encode())
    return digest.hexdigest()


def _limited(tasks: Sequence[TaskInfo], limit: int, seed: int) -> list[TaskInfo]:
    if not limit or limit >= len(tasks):
        return list(tasks)
    ranked = sorted(tasks, key=lambda t: hashlib.sha256(f"{seed}/{t.id}".encode()).hexdigest())
    kept = {t.id for t in ranked[:limit]}
    return [t for t in tasks if t.id in kept]


def _read_tasks(folder: Path, subset: str) -> list[dict[str, Any]]:
    if subset in UNSPLIT:
        return [_read(file) for file in sorted((folder / "tasks").glob("task_*.json"))]
    return _read(folder / "tasks.json")


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as e:
        raise DataError(
            f"{file} of the tau2 harness cannot be read ({e}); remove its folder and build it anew"
        ) from e


def _info(task: dict[str, Any]) -> TaskInfo:
    criteria = task.get("evaluation_criteria") or {}
    return TaskInfo(
        id=str(task["id"]),
        basis=tuple(criteria.get("reward_basis") or DEFAULT_BASIS),
        assertions=len(criteria.get("nl_assertions") or ()),
    )
