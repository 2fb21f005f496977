"""The MLflow runs of a pipeline and of its stages.

Flows in: a stage's `Run`. Flows out: one child run a stage (or attempt) under one parent run a pipeline.
Invariant: a run ends FINISHED only when its work did, FAILED when it raised, KILLED when it was interrupted;
what a killed process left RUNNING is marked KILLED before anything new starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from envace.config import Params, flatten, split_run, to_dict
from envace.io.redact import Redactor
from envace.rollout.pool import PoolAborted
from envace.track import store, traces
from envace.track.lineage import lineage_key, lineage_tags, run_name, stage_hash
from envace.track.run_log import FAILED, FINISHED, KILLED, RunLog
from envace.types import JSON, Episode
from tasks.artifacts import log_report
from tasks.run import Run
from tasks.summary import log_summary


class ProjectStore(store.Store):
    """The MLflow store of this project and its parents. What earlier processes left is put right first."""

    def __init__(self, params: Params, root: Path, state: Path):
        uri = os.environ.get("MLFLOW_TRACKING_URI") or store.default_uri(state)
        super().__init__(uri, params.mlflow.experiment, state, Redactor(to_dict(params)))
        os.environ["MLFLOW_TRACKING_URI"] = uri  # for subprocesses
        self.params, self.root = params, root
        self.tidy()

    def start_parent(self, driver: str) -> RunLog:
        """The parent with all parameters: one a pipeline of ours, or for equal parameters and commit where
        DVC drives.
        """
        tags = {"envace.driver": driver, **lineage_tags(self.root, self.params)}
        name = run_name(self.root, self.params)
        if driver == "dvc":
            log = self.shared_parent(name, key=lineage_key(self.root), tags=tags)
        else:
            log = self.start_run(name, kind="pipeline", tags=tags)
        log.params(parent_params(self.params))
        return log


def parent_params(params: Params) -> dict[str, JSON]:
    """All parameters, dotted, and the few that charts need in another form."""
    flat = flatten(to_dict(params))
    rates = {k: v for k, v in flat.items() if k.endswith(".lr") and isinstance(v, (int, float))}
    flat |= {f"{k}_e-6": round(v * 1e6, 6) for k, v in rates.items()}  # charts print five decimals
    return flat | {f"method.{k}": v for k, v in asdict(params.resolved_method()).items()}


def stage_params(params: Params, sections: Iterable[str], arguments: Mapping[str, JSON]) -> dict[str, JSON]:
    """The sections a stage uses, dotted, and its arguments; of a training also its arm and seed."""
    everything, arm, more = to_dict(params), "", dict[str, JSON]()
    if training := arguments.get("training"):  # charts group by its parts
        arm, seed = split_run(training)
        more = {"arm": arm, "seed": seed}
    flat = flatten({s: everything[s] for s in sections})
    if "train" in sections:
        flat["train.lr_e-6"] = round(params.train.lr * 1e6, 6)
    if "method" in sections:
        flat |= {f"method.{k}": v for k, v in asdict(params.resolved_method(arm)).items()}
    return flat | dict(arguments) | more


@contextmanager
def stage_run(
    run: Run, sections: Iterable[str], arguments: Mapping[str, JSON], policy: str
) -> Iterator[RunLog]:
    """The MLflow run of one stage execution, under the pipeline's parent."""
    found, kind = ProjectStore(run.params, run.root, run.state), run.name.split("@")[0]
    with ExitStack() as stack:
        parent = os.environ.get("ENVACE_PARENT_RUN_ID", "")
        if not parent:  # DVC drives
            log = found.start_parent("dvc")
            tag_stage_hashes(found, log.run_id, run.root)
            stack.enter_context(closing_parent(found, log))
            parent = log.run_id
        tags = {"envace.stage": kind, "mlflow.source.name": f"python -m flows.{kind}"}
        tags |= lineage_tags(run.root, run.params, run.name, policy)
        tags |= {f"envace.{k}": str(v) for k, v in arguments.items()}
        log = found.start_run(run.name, kind="stage", parent=parent, tags=tags)
        log.params(stage_params(run.params, sections, arguments))
        yield stack.enter_context(ended(log))


def _end_state(error: BaseException | None) -> str:
    """FAILED for what raised, KILLED for Ctrl-C and SIGTERM."""
    return FINISHED if error is None else FAILED if isinstance(error, Exception) else KILLED


@contextmanager
def ended(log: RunLog) -> Iterator[RunLog]:
    """End a run as its block ended."""
    try:
        yield log
    except BaseException as e:
        if isinstance(e, Exception):
            log.tags({"envace.error": f"{type(e).__name__}: {e}"})
        log.end(_end_state(e))
        raise
    log.end(FINISHED)


@contextmanager
def closing_parent(found: ProjectStore, parent: RunLog) -> Iterator[None]:
    """After a stage that DVC started: the summary on the parent, and its end state unless a sibling runs."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as e:
        error = e
        raise
    finally:
        parent.tags({"envace.last_stage_ended": _end_state(error)})
        log_summary(parent, found.root, found.params)
        log_report(parent, found.root)
        if parent.degraded or not found.running_children(parent.run_id):
            parent.end(_end_state(error))


def tag_stage_hashes(found: store.Store, parent_id: str, root: Path) -> None:
    """Give finished stage runs the hash of their dvc.lock entry, which DVC writes after they end.

    Only when dvc.lock is younger than the run: then the entry is the run's own.
    """
    lock = root / "dvc.lock"
    if not lock.is_file():
        return
    written = lock.stat().st_mtime * 1000
    where = f"tags.`mlflow.parentRunId` = '{parent_id}' and attributes.status = 'FINISHED'"
    for child in found.client.search_runs([found.experiment], where):
        tags = child.data.tags
        if "dvc.lock_hash" not in tags and tags.get("dvc.stage") and child.info.end_time <= written:
            found.client.set_tag(child.info.run_id, "dvc.lock_hash", stage_hash(root, tags["dvc.stage"]))


def trace_episodes(run: Run, candidates: Iterable[traces.Candidate | None], kind: str = "") -> None:
    """Episodes of a stage as MLflow traces, as many as `mlflow.traces` and `mlflow.failed_traces` say.

    candidates: see `envace.track.traces`. kind: of episodes beside the stage's own, such as rehearsal.
    """
    p = run.params.mlflow
    if not run.logged or not (p.traces or p.failed_traces):
        return
    tags = {
        "envace.stage": run.name,
        "envace.preset": run.params.method.preset,
        "envace.size": run.params.size,
    }
    tags |= {"envace.kind": kind} if kind else {}
    counts = traces.log_traces(run.log, candidates, sample=p.traces, failed=p.failed_traces, tags=tags)
    if counts.episodes or counts.unreadable:
        run.say(counts.sentence())
        prefix = f"traces/{kind}_" if kind else "traces/"
        run.metrics({f"{prefix}{name}": value for name, value in counts.metrics().items()})


@contextmanager
def traced(run: Run, policy: str) -> Iterator[list[Episode]]:
    """Episodes put into the list become traces when the block ends; so do those of a pool that gave up."""
    episodes: list[Episode] = []
    try:
        yield episodes
    except PoolAborted as e:
        episodes += e.episodes
        raise
    finally:
        trace_episodes(run, traces.of_episodes(episodes, {"envace.policy": policy}))


def trace_training(run: Run, work: Path, policy: str, last: int | None = None) -> None:
    """The episodes a training has left in its work folder, up to step `last`."""
    files = sorted((work / "episodes").glob("step_*.jsonl"))
    steps = [(int(path.stem.partition("_")[2]), path) for path in files]
    found = (
        candidate
        for step, path in steps
        if last is None or step <= last
        for candidate in traces.of_file(path, {"envace.policy": policy, "envace.step": str(step)})
    )
    trace_episodes(run, found)
