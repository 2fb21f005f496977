"""The whole pipeline: DVC's graph seen by Prefect, one task a stage.

Flows in: dvc.yaml, params.yaml. Flows out: everything `dvc repro` makes, with retries, cancelling, a Prefect
run to look at and one MLflow parent run.
Invariant: DVC alone decides what is stale and runs each stage exactly once; when nothing is stale, no server
and no run is made. One pipeline at a time; leftovers of a killed one are ended at the next start.

A local or S3 source that changed since it was staged is told before anything runs, since DVC does not look
there.

`python -m flows.reproduce [stage ...] [--force] [--jobs N] [--keep-rows]`
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
from filelock import FileLock, Timeout

if __package__ in (None, ""):  # a Prefect worker loads this file by path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envace.config import Params
from envace.data.source_changes import must_stage_again
from envace.errors import EnvironmentUnready, UserError, describe
from envace.io import processes
from envace.params import load_checked
from envace.track.run_log import RunLog
from flows import _dvc, _entry, _signals, services
from tasks.preflight import preflight
from tasks.run import ANEW, state_dir

if TYPE_CHECKING:
    from prefect import Flow, State
    from prefect.futures import PrefectFuture

UNWIND_S = 25.0  # stages get their own time first
INSIDE = "ENVACE_IN_PIPELINE"
STAGING = "stage_data"


def refuse_reentry() -> None:
    """A stage must not start the pipeline that runs it."""
    if os.environ.get(INSIDE) or os.environ.get("DVC_STAGE"):
        raise UserError("flows.reproduce was called from inside a stage; it runs stages and cannot be one")


_held: list[str] = []


@contextmanager
def only_pipeline(state: Path) -> Iterator[None]:
    """Hold `.state/pipeline.lock` and name this process in `.state/pipeline.pid`; may be nested."""
    if _held:
        yield
        return
    state.mkdir(parents=True, exist_ok=True)
    card = state / "pipeline.pid"
    try:
        lock = FileLock(state / "pipeline.lock").acquire(timeout=0)
    except Timeout:
        pid = card.read_text() if card.is_file() else "unknown"
        raise EnvironmentUnready(
            f"a pipeline is already running here (pid {pid}); wait for it or stop it"
        ) from None
    with lock:
        for note in processes.reap_dead_owners(state):
            print(note, flush=True)
        with (
            processes.owner(state, "pipeline", "reproduce") as token,
            _signals.finishing(partial(processes.retire, state, token)),
        ):
            card.write_text(str(os.getpid()))
            _held.append(token)
            try:
                yield
            finally:
                _held.clear()
                card.unlink(missing_ok=True)


@contextmanager
def ending(commands: _dvc.Commands, finish: Callable[[], None]) -> Iterator[None]:
    """However the block ends early (Ctrl-C, SIGTERM from a worker, an error), no command outlives it."""
    _signals.allow(UNWIND_S)
    with _signals.interruptible(first=commands.end), _signals.finishing(finish):
        try:
            yield
        except BaseException as e:
            commands.end()
            if isinstance(e, Exception) and _signals.interrupted():  # the signal broke something on its way
                raise KeyboardInterrupt("interrupted by a signal") from None
            raise


def moved(params: Params, root: Path, keep: bool = False) -> list[str]:
    """The stages that must run because the source changed. Raises DataError where the user must decide."""
    must, line = must_stage_again(params, root / "data/staged", keep)
    if line:
        print(line, flush=True)
    return [STAGING] if must else []


def make_flow(jobs: int = 1) -> Flow[..., State | None]:
    """The Prefect flow; `jobs` stages may run at once."""
    from prefect import flow
    from prefect.task_runners import ThreadPoolTaskRunner

    runner = ThreadPoolTaskRunner(max_workers=jobs)
    return flow(name="reproduce", task_runner=runner, validate_parameters=False)(_reproduce)


def _reproduce(
    targets: list[str] | None = None, force: bool = False, again: list[str] | None = None
) -> State | None:
    """Reproduce the stages named (default: all) and what they need."""
    from prefect.states import Completed

    refuse_reentry()
    root = Path.cwd()
    params, state = load_checked(root / "params.yaml"), state_dir(root)
    services.use(state)
    checked = bool(_held)  # by `run`, before Prefect was imported
    with only_pipeline(state):
        again = again if checked else moved(params, root)
        dag = _dvc.graph(root, targets or ())
        if not checked:
            stale = _dvc.with_dependents(dag, {*(again or ()), *_dvc.stale(root)})
            if not (force or stale):
                return Completed(name="Cached", message="nothing to do")
            preflight(params, root, list(dag) if force else stale)
        _run_stages(params, root, state, dag, set(dag) if force else set(again or ()), anew=force)
    return None


def _run_stages(
    params: Params, root: Path, state: Path, dag: _dvc.Graph, force: set[str], anew: bool = False
) -> None:
    """All stages under one MLflow parent, which has the summary also when one of them fails; `anew` trains
    again also what was trained."""
    import prefect.runtime
    from prefect.client.orchestration import get_client

    from tasks.artifacts import log_report
    from tasks.summary import log_summary
    from tasks.tracking import ProjectStore, ended, tag_stage_hashes

    with get_client(sync_client=True) as client:
        url = str(client.api_url)  # also of a temporary server, which the stages share
    store = ProjectStore(params, root, state)
    with ended(store.start_parent("reproduce")) as parent:
        env = {INSIDE: "1", _entry.PARENT_RUN: parent.run_id, "PREFECT_API_URL": url}
        env |= {ANEW: parent.run_id} if anew else {}
        commands = _dvc.Commands(root, state, _dvc.environment(**env))
        with ending(commands, partial(parent.end, "KILLED")):
            if flow_run := prefect.runtime.flow_run.id:
                parent.tags({"prefect.flow_run_id": flow_run})
            try:
                states = _submit(params, dag, force, commands)
            finally:
                log_summary(parent, root, params)
                if not parent.degraded:  # MLflow is still there
                    tag_stage_hashes(store, parent.run_id, root)
            _raise_first_failure(states)
            log_report(parent, root)
        told = _ending(root, state, parent, flow_run)
    cached = sum(state.name == "Cached" for state in states.values())
    print(f"pipeline done: {len(states) - cached} stage(s) ran, {cached} unchanged", flush=True)
    print("\n".join(told), flush=True)


def _ending(root: Path, state: Path, parent: RunLog, flow_run: str | None) -> list[str]:
    """What a person wants to know at the end: the gain, where the report is, and where to look."""
    from tasks.summary import verdict

    report, ui = root / "report/index.html", services.read(state).get("prefect", {}).get("ui")
    mlflow = services.link_of_run(parent)
    lines = [verdict(root), f"report: {report}" if report.is_file() else ""]
    lines += [f"MLflow: {mlflow}" if mlflow else "make up shows the runs in MLflow and Prefect"]
    lines += [f"Prefect: {ui}/runs/flow-run/{flow_run}" if mlflow and ui and flow_run else ""]
    return list(filter(None, lines))


def _submit(params: Params, dag: _dvc.Graph, force: set[str], commands: _dvc.Commands) -> dict[str, State]:
    """One task a stage, those in `force` whatever DVC thinks; {stage: final state}."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    def one(stage: str) -> State:
        return _reproduce_stage(stage, stage in force, commands)

    futures = dict[str, "PrefectFuture[State]"]()
    p = params.prefect
    for stage in dag:
        named = task(
            name=stage,
            task_run_name=stage,
            cache_policy=NO_CACHE,
            retries=p.retries,
            retry_delay_seconds=p.retry_delay_s,
        )
        needs = [futures[parent] for parent in dag.predecessors(stage)]
        futures[stage] = named(one).submit(stage, return_state=False, wait_for=needs)
    for future in futures.values():
        future.wait()
    return {stage: future.state for stage, future in futures.items()}


def _reproduce_stage(stage: str, force: bool, commands: _dvc.Commands) -> State:
    """`dvc repro` of one stage. Returns a state named Cached when DVC found it unchanged."""
    import prefect.runtime
    from prefect.states import Completed

    began = time.time()
    if not commands.reproduce(stage, force, {_entry.PARENT_TASK: str(prefect.runtime.task_run.id)}):
        print(f"{stage} | unchanged", flush=True)
        return Completed(name="Cached", message="unchanged")
    print(f"{stage} | done in {time.time() - began:.0f} s", flush=True)
    return Completed(message=f"ran in {time.time() - began:.0f} s")


def _raise_first_failure(states: dict[str, State]) -> None:
    failed = [name for name, state in states.items() if state.is_failed() or state.is_crashed()]
    waiting = [name for name, state in states.items() if not state.is_completed() and name not in failed]
    if failed:
        state = states[failed[0]]
        cause = state.result(raise_on_failure=False)
        said = describe(cause) if isinstance(cause, BaseException) else state.message
        more = f"; not run because of it: {', '.join(waiting)}" if waiting else ""
        raise UserError(f"stage {failed[0]} failed: {said}{more}")
    if waiting:
        raise UserError(f"stages did not finish: {', '.join(waiting)}")


def run(
    root: Path, targets: Iterable[str] = (), force: bool = False, jobs: int = 1, keep_rows: bool = False
) -> None:
    """The command without its parsing."""
    refuse_reentry()
    params, state, targets = load_checked(root / "params.yaml"), state_dir(root), list(targets)
    with only_pipeline(state):
        again = moved(params, root, keep_rows)
        stale = {*again, *_dvc.stale(root)}
        dag = _dvc.graph(root, targets) if force or stale or targets else nx.DiGraph()
        todo = list(dag) if force else _dvc.with_dependents(dag, stale)
        if not todo:
            what = f"{', '.join(targets)} and what they need are" if targets else "everything is"
            print(f"nothing to do: {what} up to date")
            return
        print(f"{len(todo)} of {len(dag)} stages to check or run: {', '.join(todo)}", flush=True)
        preflight(params, root, todo)
        services.use(state)
        _entry.check_prefect()
        make_flow(jobs)(targets=targets, force=force, again=again)


def main() -> None:
    """Bring every output up to date."""
    cli = argparse.ArgumentParser(prog="python -m flows.reproduce", description=main.__doc__)
    cli.add_argument("targets", nargs="*", help="stages (`train` means all of its variants); default: all")
    cli.add_argument("--force", action="store_true", help="run stages even when unchanged")
    cli.add_argument("--jobs", type=int, default=1, help="stages that may run at once (default 1)")
    cli.add_argument(
        "--keep-rows", action="store_true", help="use the staged rows though their source changed"
    )
    args = cli.parse_args()
    root = Path.cwd()
    work = partial(run, root, args.targets, args.force, args.jobs, args.keep_rows)
    _entry.leave(_entry.run_command("reproduce", state_dir(root), work))


def __getattr__(name: str) -> Flow[..., State | None]:
    """`reproduce`, the flow object a deployment names, made only when asked for."""
    if name == "reproduce":
        return make_flow()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
