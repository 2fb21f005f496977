"""DVC as the pipeline sees it: its graph, what is stale, and `dvc repro` of one stage.

Flows in: a project folder. Flows out: a graph of stage names, commands that ran, or one sentence on why not.
Invariant: DVC alone decides what is stale; its commands run in sessions of their own and are ended with them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import networkx as nx

from envace.errors import EnvironmentUnready, StageFailed, UserError
from envace.io import children, processes
from envace.io.files import read_state

Graph: TypeAlias = "nx.DiGraph[str]"
"""Stage names, with edges from what is needed to what needs it, in an order that respects that."""
SKIPPED = re.compile(r"^Stage '([^']+)' (didn't change, skipping|is cached - skipping run)", re.M)
ADVICE = (
    "Updating lock file",
    "Generating lock file",
    "To track the changes",
    "To enable auto staging",
    "Use `dvc push`",
    "git add",
    "dvc config",
    "> python -m",
    "Loading weights",
    "Writing model shards",
    "Data and pipelines are up to date",
)


def graph(root: Path, targets: Iterable[str] = ()) -> Graph:
    """The stages; targets narrow it to themselves and what they need. Raises UserError without any."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            # as `dvc repro` takes them at the project's root, wherever this process stands
            names = {s: s.name if s.path_in_repo == "dvc.yaml" else s.path_in_repo for s in repo.index.graph}
            needs = nx.relabel_nodes(repo.index.graph, names)
    except DvcException as e:
        raise UserError(f"DVC cannot read this project's stages: {e}") from None
    found: Graph = nx.DiGraph()
    found.add_nodes_from(nx.dfs_postorder_nodes(needs))
    found.add_edges_from((parent, child) for child, parent in needs.edges)
    return needed(found, targets)


def needed(dag: Graph, targets: Iterable[str]) -> Graph:
    """The part of a graph that targets need; `train` stands for every `train@...`."""
    keep: set[str] = set()
    for target in targets:
        found = [n for n in dag if n == target or n.startswith(f"{target}@")]
        if not found:
            raise UserError(f"no stage {target!r}; stages: {', '.join(dag)}")
        keep.update(found, *(nx.ancestors(dag, n) for n in found))
    part = dag.copy()  # a view would not keep the order
    part.remove_nodes_from([n for n in dag if keep and n not in keep])
    return part


def with_dependents(dag: Graph, names: Iterable[str]) -> list[str]:
    """The named stages and all that build on them, in the graph's order."""
    names = {n for n in names if n in dag}
    found = names.union(*(nx.descendants(dag, n) for n in names))
    return [n for n in dag if n in found]


def stale(root: Path) -> set[str]:
    """Stages whose outputs are not what code, parameters and data call for."""
    command = _command("--wait-for-lock", "status", "--json")
    done = subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"dvc status failed: {_last_error(done.stderr)}")
    return set(json.loads(done.stdout or "{}"))


def _command(*args: str) -> list[str]:
    return [sys.executable, "-m", "dvc", *args]


def environment(**more: str) -> dict[str, str]:
    """Our environment, with our interpreter first on PATH: stage commands say `python`."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", **more}


def _last_error(output: str) -> str:
    """DVC's own last words."""
    said = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR")]
    return (errors or said or ["ended without a message"])[-1]


def worth_showing(line: str) -> bool:
    """DVC's advice is left out."""
    text = line.strip()
    return bool(text) and not text.startswith(ADVICE) and "didn't change" not in text


class Commands:
    """The DVC commands of one pipeline; `end` ends them all."""

    def __init__(self, root: Path, state: Path, env: Mapping[str, str]):
        self.root, self.state, self.cancelled = root, state, False
        self._token, self._lock = uuid.uuid4().hex, threading.Lock()
        self._env = {**env, processes.OWNERS: f"{env.get(processes.OWNERS, '')}:{self._token}".strip(":")}
        self._running: list[children.Child] = []

    def reproduce(self, stage: str, force: bool, parent_task: Mapping[str, str]) -> bool:
        """`dvc repro` of one stage; false when it was unchanged. Raises StageFailed with the stage's own
        words.
        """
        note = self.state / "failed" / f"{stage}.json"
        note.unlink(missing_ok=True)
        command = _command("--wait-for-lock", "repro", "-s", *(["--force"] if force else []), stage)
        code, output = self.run(command, stage, parent_task)
        if code:
            said = read_state(note, dict) or {}
            raise StageFailed(said.get("message") or _last_error(output))
        return stage not in (name for name, _ in SKIPPED.findall(output))

    def run(self, argv: list[str], label: str, env: Mapping[str, str]) -> tuple[int, str]:
        """Run a command, echo its output; (status, output). Raises EnvironmentUnready after `end`."""
        with self._lock:
            if self.cancelled:
                raise EnvironmentUnready("the pipeline was cancelled")
            child = children.start(argv, env={**self._env, **env}, output=subprocess.PIPE, cwd=self.root)
            self._running.append(child)
        lines = []
        for line in (raw.decode(errors="replace") for raw in child.popen.stdout or ()):
            lines.append(line)
            if worth_showing(line):
                print(f"{label} | {line.rstrip()}", flush=True)
        code = child.popen.wait()
        self._running.remove(child)
        return code, "".join(lines)

    def end(self) -> None:
        """End the sessions of all commands and whatever else descends from them; nothing new starts."""
        self.cancelled = True
        for child in list(self._running):
            processes.end(partial(processes.family, child.popen.pid), grace_s=12.0)
        processes.end(partial(processes.carriers, self._token))
