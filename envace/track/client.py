"""The MLflow store, and a log bound to one run of it.

Flows in: a tracking address and run ids. Flows out: runs, metrics, params and tags in the store; while the
store is away, lines in `.state/mlflow-buffer/`.
Invariant: every write names its run (no global active run); a dead store at the start refuses
(EnvironmentUnready), a dead store later loses nothing and stops nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envace.errors import EnvironmentUnready, innermost
from envace.io.processes import Identity, identify, proven_dead
from envace.io.redact import Redactor
from envace.track.names import Namer, param_name, param_value

FINISHED, FAILED, KILLED = "FINISHED", "FAILED", "KILLED"
LONGEST_TAG = 4900
BATCH = 90  # the store takes 100 params or tags at once
CALLERS_FAULT = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS")


def default_uri(state: Path) -> str:
    """The local store; absolute, because stages may run in a copied folder."""
    return f"sqlite:///{state.resolve()}/mlflow.db"


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """One process at a time; freed by the kernel when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def connect(uri: str, state: Path) -> Any:
    """A client whose store answered. Creates the local store once, whoever comes first.

    Raises EnvironmentUnready with the address and the innermost cause.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # default: minutes of retries a call
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient

    try:
        with file_lock(state / "mlflow.lock"):  # two processes creating the same database crash each other
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
    except _outages() as e:
        shown = Redactor().text(uri)
        cure = "start it with `make up`, or unset MLFLOW_TRACKING_URI to use the local store"
        if uri.startswith("sqlite"):
            cure = "move the file away to begin a new store"
        raise EnvironmentUnready(
            f"MLflow at {shown} does not answer: {Redactor().text(_cause(e))}; {cure}"
        ) from None
    return client


def _outages() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError


def _cause(error: BaseException) -> str:
    text = str(innermost(error)).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def experiment(client: Any, name: str, state: Path) -> str:
    """Id of the experiment, made when missing, restored when deleted."""
    with file_lock(state / "mlflow.lock"):
        found = client.get_experiment_by_name(name)
        if found is None:
            local = (
                None
                if str(client.tracking_uri).startswith("http")
                else (state / "mlartifacts").resolve().as_uri()
            )
            return client.create_experiment(name, artifact_location=local)
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return found.experiment_id


class RunLog:
    """Writes to one run, known by its id, from any thread or task."""

    def __init__(self, client: Any, run_id: str, state: Path, redactor: Redactor | None = None):
        self.client, self.run_id, self.state = client, run_id, state
        self.redactor = redactor or Redactor()
        self.name = Namer()
        self._params: dict[str, str] = {}
        self._buffer: Path | None = None

    @classmethod
    def attach(cls, client: Any, run_id: str, state: Path, redactor: Redactor | None = None) -> RunLog:
        """Go on with an existing run; its parameters stay as first logged."""
        log = cls(client, run_id, state, redactor)
        log._params = dict(client.get_run(run_id).data.params)
        return log

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log numbers at a step; names are cleaned, non-numbers skipped."""
        now = int(time.time() * 1000)
        names = self.name.all(k for k, v in values.items() if _is_number(v))
        rows = [[name, float(values[k]), now, int(step)] for k, name in names.items()]
        for chunk in _chunks(rows, 900):
            self._send("metrics", chunk)

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters once; a value that changed since becomes the tag `param.<name>`."""
        fresh, changed = {}, {}
        for key, value in values.items():
            name, text = param_name(key), self.redactor.text(param_value(value))
            if name not in self._params:
                fresh[name] = text
            elif self._params[name] != text:
                changed[f"param.{name}"] = text
        self._params |= fresh
        for chunk in _chunks(sorted(fresh.items()), BATCH):
            self._send("params", chunk)
        if changed:
            self.tags(changed)

    def tags(self, values: Mapping[str, Any]) -> None:
        rows = [[k, self.redactor.text(str(v))[:LONGEST_TAG]] for k, v in values.items()]
        for chunk in _chunks(rows, BATCH):
            self._send("tags", chunk)

    def end(self, status: str) -> None:
        """Set the final state: FINISHED, FAILED or KILLED."""
        self._send("end", [status, int(time.time() * 1000)])

    @property
    def degraded(self) -> bool:
        """The store went away; lines since then wait on disk."""
        return self._buffer is not None

    def _send(self, op: str, data: list) -> None:
        if self._buffer is None:
            error = _attempt(lambda: _apply(self.client, self.run_id, op, data))
            if error is None:
                return
            self._open_buffer(error)
        self._append({"op": op, "run_id": self.run_id, "data": data})

    def _open_buffer(self, error: str) -> None:
        self._buffer = self.state / "mlflow-buffer" / f"{self.run_id}-{os.getpid()}-{time.time_ns()}.jsonl"
        self._buffer.parent.mkdir(parents=True, exist_ok=True)
        self._append({"op": "owner", "data": asdict(identify())})
        note = f"warning: MLflow went away ({self.redactor.text(error)}); the run goes on, its log waits in {self._buffer} and is sent at the next start"
        print(note, file=sys.stderr, flush=True)

    def _append(self, line: dict) -> None:
        with self._buffer.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or hasattr(value, "__float__")


def _chunks(rows: list, size: int) -> Iterator[list]:
    for i in range(0, len(rows), size):
        yield rows[i : i + size]


def _attempt(write: Callable[[], None]) -> str | None:
    """None when the write arrived, the cause when the store is away. A refused value still raises."""
    try:
        write()
    except _outages() as e:
        if getattr(e, "error_code", "") in CALLERS_FAULT:
            raise
        return _cause(e)
    return None


def _apply(client: Any, run_id: str, op: str, data: list) -> None:
    from mlflow.entities import Metric, Param, RunTag

    if op == "metrics":
        client.log_batch(run_id, metrics=[Metric(*row) for row in data], synchronous=True)
    elif op == "params":
        client.log_batch(run_id, params=[Param(k, v) for k, v in data], synchronous=True)
    elif op == "tags":
        client.log_batch(run_id, tags=[RunTag(k, v) for k, v in data], synchronous=True)
    else:
        client.set_terminated(run_id, status=data[0], end_time=data[1])


def start_run(
    client: Any,
    experiment_id: str,
    name: str,
    state: Path,
    *,
    kind: str,
    parent: str = "",
    tags: Mapping[str, str] | None = None,
    redactor: Redactor | None = None,
) -> RunLog:
    """A new run, RUNNING, that carries the identity of this process so that a kill can be told later.

    kind: pipeline (a parent) or stage (its child).
    """
    redactor = redactor or Redactor()
    all_tags = {"envace.kind": kind, **owner_tags(), **(tags or {})}
    if parent:
        all_tags["mlflow.parentRunId"] = parent
    clean = {k: redactor.text(str(v))[:LONGEST_TAG] for k, v in all_tags.items()}
    run = client.create_run(experiment_id, tags=clean, run_name=name)
    return RunLog(client, run.info.run_id, state, redactor)


def owner_tags() -> dict[str, str]:
    return {f"owner.{k}": str(v) for k, v in asdict(identify()).items()}


def find_or_start_parent(
    client: Any, experiment_id: str, name: str, state: Path, *, key: str, tags: Mapping[str, str]
) -> RunLog:
    """The parent of stages that DVC drives: one per lineage key, reopened by each of its stages."""
    where = f"tags.`envace.kind` = 'pipeline' and tags.`envace.driver` = 'dvc' and tags.`envace.lineage` = '{key}'"
    with file_lock(state / "mlflow-parent.lock"):
        found = client.search_runs(
            [experiment_id], where, max_results=1, order_by=["attributes.start_time DESC"]
        )
        if not found:
            return start_run(
                client, experiment_id, name, state, kind="pipeline", tags={**tags, "envace.driver": "dvc"}
            )
        log = RunLog.attach(client, found[0].info.run_id, state)
        client.update_run(log.run_id, status="RUNNING")
        log.tags(owner_tags())
        return log


def running_children(client: Any, experiment_id: str, parent: str) -> list[str]:
    where = f"tags.`mlflow.parentRunId` = '{parent}' and attributes.status = 'RUNNING'"
    return [r.info.run_id for r in client.search_runs([experiment_id], where)]


def reap(client: Any, experiment_id: str) -> list[str]:
    """Mark runs whose process is proven dead as KILLED; returns their ids."""
    killed = []
    for run in client.search_runs([experiment_id], "attributes.status = 'RUNNING'", max_results=1000):
        owner = Identity.read({k.removeprefix("owner."): v for k, v in run.data.tags.items()})
        if owner and proven_dead(owner):
            client.set_tag(run.info.run_id, "envace.ended_by", "next start: its process was gone")
            client.set_terminated(run.info.run_id, status=KILLED)
            killed.append(run.info.run_id)
    return killed


def replay(client: Any, state: Path) -> int:
    """Send what was buffered by processes that are gone; returns the number of lines sent.

    A file whose run is not in this store stays for the store it belongs to.
    """
    sent = 0
    for path in sorted((state / "mlflow-buffer").glob("*.jsonl")):
        with file_lock(state / "mlflow-buffer.lock"):
            sent += _replay_file(client, path)
    return sent


def _replay_file(client: Any, path: Path) -> int:
    if not path.exists():  # another process sent it
        return 0
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    owner = Identity.read(lines[0]["data"]) if lines and lines[0]["op"] == "owner" else None
    if owner and not proven_dead(owner):
        return 0
    todo = [line for line in lines if line["op"] != "owner"]
    for line in todo:
        if _attempt(lambda line=line: _apply(client, line["run_id"], line["op"], line["data"])) is not None:
            return 0
    path.unlink()
    return len(todo)
