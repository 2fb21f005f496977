"""The MLflow store: connected, with the experiment of this project and its runs.

Flows in: a tracking address, the name of an experiment. Flows out: `RunLog`s of new and found runs.
Invariant: a dead store at the start refuses (EnvironmentUnready). Every run carries the identity of its
process, so that what a killed process left RUNNING is marked KILLED by whoever comes next.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from envace.errors import EnvironmentUnready
from envace.io.processes import ProcessIdentity, identify, proven_dead
from envace.io.redact import Redactor
from envace.track.run_log import KILLED, LONGEST_TAG, RunLog, cause_of, outages, replay

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Columns of the local store that name a place of artifacts."""
OWN_LOCATION = re.compile(r"mlflow-artifacts:|file://.*/mlartifacts(?=/|$)")


def default_uri(state: Path) -> str:
    """The local store; absolute, because stages may run in a copied folder."""
    return f"sqlite:///{state.resolve()}/mlflow.db"


def artifacts_uri(state: Path) -> str:
    """Where the local store keeps artifacts, and the server of `make up`, too."""
    return (state / "mlartifacts").resolve().as_uri()


def mend_locations(state: Path) -> None:
    """Let the local store name artifacts where they are: the folder was moved, or a server wrote them."""
    here = artifacts_uri(state)
    with closing(sqlite3.connect(state / "mlflow.db")) as db, db:
        for table, column in LOCATIONS:
            for (old,) in db.execute(f"select distinct {column} from {table}").fetchall():
                found = OWN_LOCATION.match(old or "")
                if found and found[0] != here:
                    new = f"{here}/{old[found.end() :].lstrip('/')}".rstrip("/")
                    db.execute(f"update {table} set {column} = ? where {column} = ?", (new, old))


def connect(uri: str, state: Path) -> MlflowClient:
    """A client whose store answered. Creates the local store once, whoever comes first.

    Raises EnvironmentUnready with the address and the innermost cause.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # default: minutes of retries a call
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient

    state.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(state / "mlflow.lock"):  # two processes creating the same database crash each other
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
    except outages() as e:
        clean = Redactor().text
        cure = "start it with `make up`, or unset MLFLOW_TRACKING_URI to use the local store"
        if uri.startswith("sqlite"):
            cure = "move the file away to begin a new store"
        raise EnvironmentUnready(
            f"MLflow at {clean(uri)} does not answer: {clean(cause_of(e))}; {cure}"
        ) from None
    return client


class Store:
    """`Store("sqlite:///...", "envace", state)`"""

    def __init__(self, uri: str, experiment: str, state: Path, redactor: Redactor | None = None):
        self.uri, self.state, self.redactor = uri, state, redactor or Redactor()
        self.client = connect(uri, state)
        if uri == default_uri(state):
            mend_locations(state)
        self.experiment = self._experiment(experiment)

    def _experiment(self, name: str) -> str:
        """Id of the experiment, made when missing, restored when deleted."""
        with FileLock(self.state / "mlflow.lock"):
            found = self.client.get_experiment_by_name(name)
            if found is None:
                where = None if self.uri.startswith("http") else artifacts_uri(self.state)
                return str(self.client.create_experiment(name, artifact_location=where))
            if found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)

    def tidy(self) -> None:
        """What earlier processes could not finish: their buffers first, then their end states."""
        if sent := replay(self.client, self.state):
            print(f"MLflow: sent {sent} buffered write(s) of an earlier run", file=sys.stderr)
        if killed := self.mark_killed():
            print(f"MLflow: marked {len(killed)} run(s) of a killed process as KILLED", file=sys.stderr)

    def start_run(
        self, name: str, *, kind: str, parent: str = "", tags: Mapping[str, str] | None = None
    ) -> RunLog:
        """A new run, RUNNING. kind: pipeline (a parent) or stage (its child)."""
        all_tags = {"envace.kind": kind, **_owner_tags(), **(tags or {})}
        if parent:
            all_tags["mlflow.parentRunId"] = parent
        clean = {k: self.redactor.text(str(v))[:LONGEST_TAG] for k, v in all_tags.items()}
        run = self.client.create_run(self.experiment, tags=clean, run_name=name)
        return RunLog(self.client, run.info.run_id, self.state, self.redactor)

    def shared_parent(self, name: str, *, key: str, tags: Mapping[str, str]) -> RunLog:
        """The parent of stages that DVC drives: one per lineage key, reopened by each of its stages."""
        where = (
            "tags.`envace.kind` = 'pipeline' and tags.`envace.driver` = 'dvc' "
            f"and tags.`envace.lineage` = '{key}'"
        )
        latest = ["attributes.start_time DESC"]
        with FileLock(self.state / "mlflow-parent.lock"):
            found = self.client.search_runs([self.experiment], where, max_results=1, order_by=latest)
            if not found:
                return self.start_run(name, kind="pipeline", tags={**tags, "envace.driver": "dvc"})
            log = RunLog.attach(self.client, found[0].info.run_id, self.state, self.redactor)
            self.client.update_run(log.run_id, status="RUNNING")
            log.tags(_owner_tags())
            return log

    def running_children(self, parent: str) -> list[str]:
        """Ids of a parent's runs that have not ended."""
        where = f"tags.`mlflow.parentRunId` = '{parent}' and attributes.status = 'RUNNING'"
        return [run.info.run_id for run in self.client.search_runs([self.experiment], where)]

    def mark_killed(self) -> list[str]:
        """Mark runs whose process is proven dead as KILLED; returns their ids."""
        killed = []
        running = self.client.search_runs(
            [self.experiment], "attributes.status = 'RUNNING'", max_results=1000
        )
        for run in running:
            owner = ProcessIdentity.read({k.removeprefix("owner."): v for k, v in run.data.tags.items()})
            if owner and proven_dead(owner):
                self.client.set_tag(run.info.run_id, "envace.ended_by", "next start: its process was gone")
                self.client.set_terminated(run.info.run_id, status=KILLED)
                killed.append(run.info.run_id)
        return killed


def _owner_tags() -> dict[str, str]:
    return {f"owner.{k}": str(v) for k, v in asdict(identify()).items()}
