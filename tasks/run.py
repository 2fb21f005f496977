"""One execution of a stage, as every task sees it: parameters, folders, the MLflow log, a voice.

Flows in: a stage's name, checked parameters, the project's folder. Flows out: `Run`.
Invariant: what a run says goes to the terminal and to `.state/logs/<stage>.log`, without secrets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from envace.config import Params, to_dict
from envace.io.redact import Redactor

if TYPE_CHECKING:
    from envace.track.run_log import RunLog

ANEW = "ENVACE_TRAIN_ANEW"
"""Environment variable: the pipeline whose trainings start afresh (`--force`), each once, so that its retries
go on where they ended."""


def state_dir(root: Path) -> Path:
    """`.state/` of the project; DVC's temporary copies of the project share the original's."""
    parts = root.resolve().parts
    if ".dvc" in parts:
        root = Path(*parts[: parts.index(".dvc")])
    return Path(os.environ.get("ENVACE_STATE") or root.resolve() / ".state")


def log_path(state: Path, name: str) -> Path:
    """Where a stage's words are kept."""
    return state / "logs" / f"{name}.log"


def write_log(path: Path, text: str) -> None:
    """Append to a log file, with the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")


class Run:
    """`Run("train@envace-1", params, root)`; the log comes when its MLflow run has started."""

    def __init__(self, name: str, params: Params, root: Path, log: RunLog | None = None):
        self.name, self.params, self.root, self._log = name, params, root, log
        self.state = state_dir(root)
        self.redactor = Redactor(to_dict(params))
        self.log_file = log_path(self.state, name)
        self.started = time.monotonic()
        self.also_say: Callable[[str], None] | None = None
        """Hears every line, too: Prefect's log of the flow run."""

    @property
    def log(self) -> RunLog:
        """The MLflow run of this stage. Raises RuntimeError before it has started."""
        if self._log is None:
            raise RuntimeError(f"{self.name} has no MLflow run yet")
        return self._log

    @log.setter
    def log(self, log: RunLog) -> None:
        self._log = log

    @property
    def logged(self) -> bool:
        """There is an MLflow run to write to."""
        return self._log is not None

    def with_params(self, params: Params) -> Run:
        """The same run under other parameters."""
        run = Run(self.name, params, self.root, self._log)
        run.also_say = self.also_say
        return run

    def path(self, *parts: str) -> Path:
        """Below the project's folder."""
        return self.root.joinpath(*parts)

    def say(self, text: str) -> None:
        """A line for the terminal and the stage's log file."""
        text = self.redactor.text(text)
        print(text, flush=True)
        self.note(text)
        if self.also_say:
            self.also_say(text)

    def note(self, text: str) -> None:
        """A line for the stage's log file alone."""
        write_log(self.log_file, self.redactor.text(text))

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Numbers for the MLflow run, where there is one."""
        if self._log is not None:
            self._log.metrics(values, step)

    def artifact(self, name: str, content: str | Path) -> None:
        """A text, or a file of it, that a person wants to open on the MLflow run, where there is one."""
        if self._log is not None:
            self._log.artifact(name, content)
