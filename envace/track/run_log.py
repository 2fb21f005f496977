"""The log of one MLflow run, from any thread or task, also while the store is away.

Flows in: a run id, metrics, params, tags, artifacts, an end state. Flows out: all of it in the store; what a
dead store could not take as lines in `.state/mlflow-buffer/`, sent at the next start.
Invariant: every write names its run (there is no global active run); a store that goes away in mid-run loses
nothing but artifacts, whose files DVC keeps, and stops nothing. MLflow's own client retries and then raises;
its queue drops what fails.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from envace.errors import innermost
from envace.io.files import append_jsonl, read_jsonl
from envace.io.processes import ProcessIdentity, identify, proven_dead
from envace.io.redact import Redactor
from envace.track.names import Namer, param_name, param_value
from envace.types import JSON

if TYPE_CHECKING:
    from mlflow import MlflowClient

FINISHED, FAILED, KILLED = "FINISHED", "FAILED", "KILLED"
LONGEST_TAG = 4900
LARGEST_ARTIFACT = 5_000_000  # characters; a longer text is cut
BATCH = 90  # the store takes 100 params or tags at once, and 1000 metrics
CALLERS_FAULT = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS")


class RunLog:
    """Writes to one run, known by its id."""

    def __init__(self, client: MlflowClient, run_id: str, state: Path, redactor: Redactor | None = None):
        self.client, self.run_id, self.state = client, run_id, state
        self.redactor = redactor or Redactor()
        self._name = Namer()
        self._params: dict[str, str] = {}
        self._buffer: Path | None = None

    @classmethod
    def attach(
        cls, client: MlflowClient, run_id: str, state: Path, redactor: Redactor | None = None
    ) -> RunLog:
        """Go on with an existing run; its parameters stay as first logged."""
        log = cls(client, run_id, state, redactor)
        log._params = dict(client.get_run(run_id).data.params)
        return log

    def metrics(self, values: Mapping[str, JSON], step: int = 0) -> None:
        """Log numbers at a step; names are cleaned, non-numbers skipped."""
        numbers = {k: float(v) for k, v in values.items() if hasattr(v, "__float__")}
        now = int(time.time() * 1000)
        rows = [[name, numbers[k], now, int(step)] for k, name in self._name.all(numbers).items()]
        self._send("metrics", rows, 10 * BATCH)

    def params(self, values: Mapping[str, JSON]) -> None:
        """Log parameters once; a value that changed since becomes the tag `param.<name>`."""
        texts = {param_name(k): self.redactor.text(param_value(v)) for k, v in values.items()}
        fresh = {k: v for k, v in texts.items() if k not in self._params}
        changed = {f"param.{k}": v for k, v in texts.items() if self._params.get(k, v) != v}
        self._params |= fresh
        self._send("params", sorted(map(list, fresh.items())))
        self.tags(changed)

    def tags(self, values: Mapping[str, JSON]) -> None:
        """Log or replace tags."""
        self._send("tags", [[k, self.redactor.text(str(v))[:LONGEST_TAG]] for k, v in values.items()])

    def end(self, status: str) -> None:
        """Set the final state: FINISHED, FAILED or KILLED."""
        self._send("end", [[status, int(time.time() * 1000)]])

    def artifact(self, name: str, content: str | Path) -> None:
        """A text, or the file that holds it, redacted. Where no artifact can be put one line says so."""
        text = content if isinstance(content, str) else content.read_text(encoding="utf-8", errors="replace")
        text = self.redactor.text(text[:LARGEST_ARTIFACT])
        if not self.degraded:
            self._or_warn(name, lambda: self.client.log_text(self.run_id, text, name))

    def register(self, name: str, folder: str, tags: Mapping[str, str]) -> str:
        """A version of a registered model whose source is a folder of this run's artifacts, alias `current`;
        its number, or "" where the registry did not take it.
        """
        return (
            "" if self.degraded else self._or_warn(f"model {name}", lambda: self._version(name, folder, tags))
        )

    def _version(self, name: str, folder: str, tags: Mapping[str, str]) -> str:
        if not self.client.search_registered_models(f"name = '{name}'"):
            self.client.create_registered_model(name)
        source = f"{self.client.get_run(self.run_id).info.artifact_uri}/{folder}"
        made = self.client.create_model_version(name, source, self.run_id, tags=dict(tags))
        self.client.set_registered_model_alias(name, "current", made.version)
        return str(made.version)

    def _or_warn(self, name: str, write: Callable[[], str | None]) -> str:
        try:
            return write() or ""
        except outages() as e:
            cause = self.redactor.text(cause_of(e))
            print(
                f"warning: MLflow took no {name} ({cause}); DVC keeps the file", file=sys.stderr, flush=True
            )
            return ""

    @property
    def degraded(self) -> bool:
        """The store went away; lines since then wait on disk."""
        return self._buffer is not None

    def _send(self, op: str, rows: list[list[JSON]], at_once: int = BATCH) -> None:
        for at in range(0, len(rows), at_once):
            chunk = rows[at : at + at_once]
            if self._buffer is None:
                cause = attempt(partial(_apply, self.client, self.run_id, op, chunk))
                if cause is None:
                    continue
                self._buffer = self._open_buffer(cause)
            append_jsonl(self._buffer, {"op": op, "run_id": self.run_id, "data": chunk})

    def _open_buffer(self, cause: str) -> Path:
        path = self.state / "mlflow-buffer" / f"{self.run_id}-{os.getpid()}-{time.time_ns()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl(path, {"op": "owner", "data": asdict(identify())})
        print(
            f"warning: MLflow went away ({self.redactor.text(cause)}); the run goes on, its log waits in "
            f"{path} and is sent at the next start",
            file=sys.stderr,
            flush=True,
        )
        return path


def outages() -> tuple[type[Exception], ...]:
    """What MLflow's client raises where a store does not answer."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError


def cause_of(error: BaseException) -> str:
    """The first line of the innermost cause."""
    text = str(innermost(error)).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def attempt(write: Callable[[], None]) -> str | None:
    """None when the write arrived, the cause when the store is away. A refused value still raises."""
    try:
        write()
    except outages() as e:
        if getattr(e, "error_code", "") in CALLERS_FAULT:
            raise
        return cause_of(e)
    return None


def _apply(client: MlflowClient, run_id: str, op: str, rows: Sequence[Sequence[JSON]]) -> None:
    from mlflow.entities import Metric, Param, RunTag

    if op == "end":
        status, ended = rows[0]
        client.set_terminated(run_id, status=status, end_time=ended)
    else:
        entity = {"metrics": Metric, "params": Param, "tags": RunTag}[op]
        client.log_batch(run_id, synchronous=True, **{op: [entity(*row) for row in rows]})


def replay(client: MlflowClient, state: Path) -> int:
    """Send what was buffered by processes that are gone; returns the number of lines sent.

    A file whose run is not in this store stays for the store it belongs to.
    """
    sent = 0
    for path in sorted((state / "mlflow-buffer").glob("*.jsonl")):
        with FileLock(state / "mlflow-buffer.lock"):
            lines = read_jsonl(path)[0] if path.is_file() else []
            owner = next((ProcessIdentity.read(x["data"]) for x in lines if x["op"] == "owner"), None)
            todo = [x for x in lines if x["op"] != "owner"]
            writes = (partial(_apply, client, x["run_id"], x["op"], x["data"]) for x in todo)
            if (owner and not proven_dead(owner)) or any(attempt(w) is not None for w in writes):
                continue
            path.unlink(missing_ok=True)
            sent += len(todo)
    return sent
