"""The MLflow runs of a pipeline and of its stages.

Flows in: a stage's `Run`. Flows out: one child run a stage (or attempt) under one parent run a pipeline.
Invariant: a run ends FINISHED only when its work did, FAILED when it raised, KILLED when it was interrupted;
what a killed process left RUNNING is marked KILLED before anything new starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envace.config import Params, flatten, split_run, to_dict
from envace.io.redact import Redactor
from envace.track import client as mlflow_client
from envace.track.client import FAILED, FINISHED, KILLED, RunLog
from envace.track.lineage import git_commit, lineage_key, lineage_tags, stage_hash
from tasks.summary import log_summary


class Store:
    """A connected MLflow store and the experiment of this project."""

    def __init__(self, params: Params, root: Path, state: Path):
        self.params, self.root, self.state = params, root, state
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or mlflow_client.default_uri(state)
        self.redactor = Redactor(to_dict(params))
        self.client = mlflow_client.connect(self.uri, state)
        os.environ["MLFLOW_TRACKING_URI"] = self.uri  # for subprocesses
        self.experiment = mlflow_client.experiment(self.client, params.mlflow.experiment, state)
        self._tidy()

    def _tidy(self) -> None:
        """What earlier processes could not finish: their buffers first, then their end states."""
        sent = mlflow_client.replay(self.client, self.state)
        killed = mlflow_client.reap(self.client, self.experiment)
        if sent:
            print(f"MLflow: sent {sent} buffered write(s) of an earlier run", file=sys.stderr)
        if killed:
            print(f"MLflow: marked {len(killed)} run(s) of a killed process as KILLED", file=sys.stderr)

    def parent_name(self) -> str:
        p = self.params
        return f"{p.method.preset}-{p.policy.kind}-{p.size}-{git_commit(self.root)[:7]}"

    def start_parent(self) -> RunLog:
        """A parent for one pipeline execution, with all parameters."""
        tags = {"envace.driver": "reproduce", **lineage_tags(self.root, self.params)}
        log = mlflow_client.start_run(
            self.client,
            self.experiment,
            self.parent_name(),
            self.state,
            kind="pipeline",
            tags=tags,
            redactor=self.redactor,
        )
        log.params(parent_params(self.params))
        return log

    def find_parent(self) -> RunLog:
        """The parent when DVC drives: one for equal parameters and commit."""
        key = lineage_key(self.root)
        log = mlflow_client.find_or_start_parent(
            self.client,
            self.experiment,
            self.parent_name(),
            self.state,
            key=key,
            tags=lineage_tags(self.root, self.params),
        )
        log.params(parent_params(self.params))
        return log

    def attach(self, run_id: str) -> RunLog:
        return RunLog.attach(self.client, run_id, self.state, self.redactor)


def parent_params(params: Params) -> dict[str, Any]:
    """All parameters, dotted, and the few that charts need in another form."""
    flat = flatten(to_dict(params))
    for key in [k for k in flat if k.endswith(".lr")]:
        flat[f"{key}_e-6"] = round(flat[key] * 1e6, 6)  # charts print five decimals
    return flat | {f"method.{k}": v for k, v in asdict(params.resolved_method()).items()}


@contextmanager
def ended(log: RunLog) -> Iterator[RunLog]:
    """End a run as its block ended."""
    try:
        yield log
    except Exception as e:
        log.tags({"envace.error": f"{type(e).__name__}: {e}"})
        log.end(FAILED)
        raise
    except BaseException:  # Ctrl-C, SIGTERM
        log.end(KILLED)
        raise
    log.end(FINISHED)


@contextmanager
def stage_run(
    run: Any, sections: tuple[str, ...], arguments: Mapping[str, Any], policy: str
) -> Iterator[RunLog]:
    """The MLflow run of one stage execution, under the pipeline's parent."""
    store = Store(run.params, run.root, run.state)
    given = os.environ.get("envacePARENT_RUN_ID", "")
    parent = None if given else store.find_parent()
    tags = {
        "envace.stage": run.name.split("@")[0],
        "mlflow.source.name": f"python -m flows.{run.name.split('@')[0]}",
        **lineage_tags(run.root, run.params, run.name, policy),
    }
    tags |= {f"envace.{k}": str(v) for k, v in arguments.items()}
    parent_id = given or parent.run_id
    log = mlflow_client.start_run(
        store.client,
        store.experiment,
        run.name,
        run.state,
        kind="stage",
        parent=parent_id,
        tags=tags,
        redactor=store.redactor,
    )
    log.params(stage_params(run.params, sections, arguments))
    if parent is None:
        with ended(log):
            yield log
        return
    tag_stage_hashes(store, parent_id, run.root)
    with closing_parent(store, parent), ended(log):
        yield log


def stage_params(params: Params, sections: tuple[str, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
    everything, more = to_dict(params), {}
    if run := arguments.get("training"):  # one training: charts group by its parts
        more = dict(zip(("arm", "seed"), split_run(run)))
    flat = flatten({s: everything[s] for s in sections})
    if "train" in sections:
        flat["train.lr_e-6"] = round(params.train.lr * 1e6, 6)
    if "method" in sections:
        flat |= {f"method.{k}": v for k, v in asdict(params.resolved_method(more.get("arm", ""))).items()}
    return flat | dict(arguments) | more


@contextmanager
def closing_parent(store: Store, parent: RunLog) -> Iterator[None]:
    """After a stage that DVC started: the summary on the parent, and its end state unless a sibling runs."""
    status = FINISHED
    try:
        yield
    except Exception:
        status = FAILED
        raise
    except BaseException:
        status = KILLED
        raise
    finally:
        parent.tags({"envace.last_stage_ended": status})
        log_summary(parent, store.root, store.params)
        if parent.degraded or not mlflow_client.running_children(
            store.client, store.experiment, parent.run_id
        ):
            parent.end(status)


def tag_stage_hashes(store: Store, parent_id: str, root: Path) -> None:
    """Give finished stage runs the hash of their dvc.lock entry, which DVC writes after they end.

    Only when dvc.lock is younger than the run: then the entry is the run's own.
    """
    lock = root / "dvc.lock"
    if not lock.is_file():
        return
    written = lock.stat().st_mtime * 1000
    where = f"tags.`mlflow.parentRunId` = '{parent_id}' and attributes.status = 'FINISHED'"
    for child in store.client.search_runs([store.experiment], where):
        tags = child.data.tags
        if "dvc.lock_hash" not in tags and tags.get("dvc.stage") and child.info.end_time <= written:
            store.client.set_tag(child.info.run_id, "dvc.lock_hash", stage_hash(root, tags["dvc.stage"]))


def lineage_of_model(run: Any, ref: Any) -> None:
    """Tags that find the weights a run made; DVC owns the bytes."""
    run.log.tags(
        {
            "model.name": ref.name,
            "model.uri": ref.uri,
            "model.hash": ref.hash,
            "model.step": ref.step,
            "model.kind": ref.kind,
        }
    )


def trace_episodes(run: Any, candidates: Iterable[Any], kind: str = "") -> None:
    """Episodes of a stage as MLflow traces, as many as `mlflow.traces` and `mlflow.failed_traces` say.

    candidates: see `envace.track.traces`. kind: of episodes beside the stage's own, such as rehearsal.
    """
    from envace.track.traces import log_traces

    p = run.params.mlflow
    if not run.logged or not (p.traces or p.failed_traces):
        return
    tags = {
        "envace.stage": run.name,
        "envace.preset": run.params.method.preset,
        "envace.size": run.params.size,
    }
    if kind:
        tags["envace.kind"] = kind
    books = log_traces(run.log, candidates, sample=p.traces, failed=p.failed_traces, tags=tags)
    if books.episodes or books.unreadable:
        run.say(books.sentence())
        prefix = f"traces/{kind}_" if kind else "traces/"
        run.metrics({f"{prefix}{name}": value for name, value in books.counts().items()})


@contextmanager
def traced(run: Any, policy: str) -> Iterator[list[Any]]:
    """Episodes put into the list become traces when the block ends, and so do those of a pool that gave up."""
    from envace.rollout.pool import PoolAborted
    from envace.track.traces import of_episodes

    episodes: list[Any] = []
    try:
        yield episodes
    except PoolAborted as e:
        episodes += e.episodes
        raise
    finally:
        trace_episodes(run, of_episodes(episodes, {"envace.policy": policy}))


def trace_training(run: Any, work: Path, policy: str, last: int | None = None) -> None:
    """The episodes a training has left in its work folder, up to step `last`."""
    from envace.track.traces import of_file

    files = sorted((work / "episodes").glob("step_*.jsonl"))
    steps = [(int(path.stem.partition("_")[2]), path) for path in files]
    trace_episodes(run, (
        candidate
        for step, path in steps
        if last is None or step <= last
        for candidate in of_file(path, {"envace.policy": policy, "envace.step": str(step)})
    ))  # fmt: skip
