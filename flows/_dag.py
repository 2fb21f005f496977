"""dvc.yaml as a graph, through DVC's command line only.

Flows in: a project folder. Flows out: stage names in an order that respects dependencies, their parents, and
which are stale.
Invariant: no internal interface of DVC is used; the commands run in a process group of their own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from envace.errors import StageFailed, UserError

NODE = re.compile(r'^\s*"([^"]+)"\s*;\s*$', re.M)
EDGE = re.compile(r'^\s*"([^"]+)"\s*->\s*"([^"]+)"\s*;\s*$', re.M)
SKIPPED = re.compile(r"^Stage '([^']+)' (didn't change, skipping|is cached - skipping run)", re.M)


def command(*args: str) -> list[str]:
    """DVC of the interpreter that runs us."""
    return [sys.executable, "-m", "dvc", *args]


def environment(**more: str) -> dict[str, str]:
    """Our environment, with our interpreter first on PATH: stage commands say `python`."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": here + os.pathsep + os.environ.get("PATH", ""),
        "DVC_NO_ANALYTICS": "1",
        **more,
    }


def ask(root: Path, *args: str) -> str:
    """Output of a DVC command. Raises UserError with DVC's own last words."""
    done = subprocess.run(command(*args), cwd=root, env=environment(), capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        error = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no message")
        raise UserError(f"dvc {' '.join(args)} failed: {error.removeprefix('ERROR: ')}")
    return done.stdout


def graph(root: Path, targets: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """{stage: its parents}, parents first. Targets narrow it to themselves and what they need."""
    dot = ask(root, "dag", "--dot")
    return needed(parse_dot(dot), targets)


def parse_dot(dot: str) -> dict[str, tuple[str, ...]]:
    """{stage: parents} of `dvc dag --dot`, in topological order."""
    parents: dict[str, list[str]] = {name: [] for name in NODE.findall(dot)}
    for parent, child in EDGE.findall(dot):
        parents.setdefault(parent, [])
        parents.setdefault(child, []).append(parent)
    ordered: dict[str, tuple[str, ...]] = {}

    def visit(name: str) -> None:
        if name not in ordered:
            for parent in parents[name]:
                visit(parent)
            ordered[name] = tuple(parents[name])

    for name in parents:
        visit(name)
    return ordered


def needed(dag: dict[str, tuple[str, ...]], targets: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The part of a graph that targets need; `train` stands for every `train@...`."""
    if not targets:
        return dag
    todo = []
    for target in targets:
        found = [n for n in dag if n == target or n.startswith(f"{target}@")]
        if not found:
            raise UserError(f"no stage {target!r}; stages: {', '.join(dag)}")
        todo += found
    keep: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in keep:
            keep.add(name)
            todo += dag[name]
    return {name: parents for name, parents in dag.items() if name in keep}


def up_to_date(root: Path, targets: tuple[str, ...] = ()) -> bool:
    """DVC finds nothing stale. One DVC call when all stages are meant."""
    return not targets and not _status(root)


def _status(root: Path) -> dict[str, object]:
    return json.loads(ask(root, "--wait-for-lock", "status", "--json") or "{}")


def stale(root: Path, dag: dict[str, tuple[str, ...]], more: Iterable[str] = ()) -> list[str]:
    """Stages whose outputs are not what code, parameters and data call for, and `more`; and those that build on them."""
    return with_dependents(dag, {*_status(root), *more})


def with_dependents(dag: dict[str, tuple[str, ...]], names: set[str]) -> list[str]:
    """The named stages and all that depend on them, in the graph's order."""
    found: list[str] = []
    for name, parents in dag.items():
        if name in names or any(p in found for p in parents):
            found.append(name)
    return found


def was_skipped(output: str, stage: str) -> bool:
    """DVC's word that the stage was unchanged."""
    return any(name == stage for name, _ in SKIPPED.findall(output))


def failure(root: Path, state: Path, stage: str, output: str) -> StageFailed:
    """What to say about a failed `dvc repro`: the stage's own message, or DVC's."""
    note = state / "failed" / f"{stage}.json"
    if note.is_file():
        return StageFailed(json.loads(note.read_text())["message"])
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR")]
    return StageFailed(errors[-1] if errors else "ended without a message")
