"""The whole pipeline: DVC's graph seen by Prefect, one task a stage.

Flows in: dvc.yaml, params.yaml. Flows out: everything `dvc repro` makes, with retries, cancelling, a Prefect run
to look at and one MLflow parent run.
Invariant: DVC alone decides what is stale and runs each stage exactly once; when nothing is stale, no server and
no run is made. One pipeline at a time; leftovers of a killed one are ended at the next start.

A local or S3 source that changed since it was staged is told before anything runs, since DVC does not look there.

`python -m flows.reproduce [stage ...] [--force] [--jobs N] [--keep-rows]`
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # a Prefect worker loads this file by path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envace.config import Params
from envace.data.source_changes import must_stage_again
from envace.errors import EnvironmentUnready, UserError, describe
from envace.io import processes
from envace.params import load_checked
from flows import _dag, _entry, _services
from tasks.run import state_dir

UNWIND_S = 25.0  # stages get their own time first
INSIDE = "envaceIN_PIPELINE"
STAGING = "stage_data"


def refuse_reentry() -> None:
    """A stage must not start the pipeline that runs it."""
    if os.environ.get(INSIDE) or os.environ.get("DVC_STAGE"):
        raise UserError("flows.reproduce was called from inside a stage; it runs stages and cannot be one")


_held: list[str] = []


@contextmanager
def only_pipeline(state: Path) -> Iterator[None]:
    """Hold `.state/pipeline.lock` and name this process in `.state/pipeline.json`; may be nested."""
    if _held:
        yield
        return
    state.mkdir(parents=True, exist_ok=True)
    with (state / "pipeline.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentUnready(
                f"a pipeline is already running here ({_who(state)}); wait for it or stop it"
            ) from None
        for note in processes.reap_dead_owners(state):
            print(note, flush=True)
        with (
            processes.owner(state, "pipeline", "reproduce") as token,
            _entry.finishing(lambda: processes.retire(state, token)),
        ):
            card = state / "pipeline.json"
            card.write_text(json.dumps(asdict(processes.identify())))
            _held.append(token)
            try:
                yield
            finally:
                _held.clear()
                card.unlink(missing_ok=True)


def _who(state: Path) -> str:
    try:
        return f"pid {json.loads((state / 'pipeline.json').read_text())['pid']}"
    except (OSError, ValueError, KeyError):
        return "pid unknown"


class Children:
    """The DVC processes of this pipeline; ends them all when it is cancelled."""

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self.cancelled = False
        self._pids: set[int] = set()
        self._lock = threading.Lock()

    def run(self, argv: list[str], root: Path, env: dict[str, str], label: str) -> tuple[int, str]:
        """Run in a process group of its own, echo its output; returns (status, output)."""
        owners = f"{env.get(processes.OWNERS, '')}:{self.token}".strip(":")
        with self._lock:
            if self.cancelled:
                raise EnvironmentUnready("the pipeline was cancelled")
            child = subprocess.Popen(
                argv, cwd=root, env={**env, processes.OWNERS: owners}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            self._pids.add(child.pid)
        try:
            return self._follow(child, label)
        finally:
            self._pids.discard(child.pid)

    def _follow(self, child: subprocess.Popen, label: str) -> tuple[int, str]:
        lines = []
        for line in child.stdout:
            lines.append(line)
            if worth_showing(line):
                print(f"{label} | {line.rstrip()}", flush=True)
        return child.wait(), "".join(lines)

    def end(self) -> None:
        """SIGTERM then SIGKILL to the groups and to whatever else descends from them."""
        self.cancelled = True
        for pid in list(self._pids):
            processes.end(lambda pid=pid: processes.family(pid), grace_s=12.0)
        processes.end(lambda: processes.carriers(self.token))


CHATTER = (
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


def worth_showing(line: str) -> bool:
    """DVC's advice is left out."""
    text = line.strip()
    return bool(text) and not text.startswith(CHATTER) and "didn't change" not in text


@contextmanager
def ending_children(children: Children, finish: Callable[[], None]) -> Iterator[None]:
    """However the block ends early (Ctrl-C, SIGTERM from a worker, an error), no child outlives it.

    Under a worker SIGTERM stays with Prefect, whose handler raises: replaced, it could not tell the wish to cancel
    from a crash.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if main else ()
    if os.environ.get("PREFECT__FLOW_RUN_ID"):
        numbers = numbers[1:]
    _entry.UNWIND_S["seconds"] = UNWIND_S
    before = {number: signal.getsignal(number) for number in numbers}

    def on_signal(number: int, frame: Any) -> None:
        _entry.note_signal()
        children.end()
        if callable(before[number]):
            before[number](number, frame)  # Prefect's own: reports the flow run as cancelled
        raise KeyboardInterrupt("interrupted by a signal")

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        with _entry.finishing(finish):
            yield
    except BaseException as e:
        children.end()
        if isinstance(e, Exception) and _entry.interrupted():  # the signal broke something on its way
            raise KeyboardInterrupt("interrupted by a signal") from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def run_pipeline(
    params: Params, root: Path, targets: tuple[str, ...], force: bool, jobs: int, again: list[str]
) -> Any:
    """Make the Prefect flow of the current graph and run it; the stages in `again` run though DVC sees no change."""
    return make_flow(params, jobs)(targets=list(targets), force=force, again=again)


def moved(params: Params, root: Path, keep: bool = False) -> list[str]:
    """The stages that must run because the source changed. Raises DataError where the user must decide."""
    must, line = must_stage_again(params, root / "data/staged", keep)
    if line:
        print(line, flush=True)
    return [STAGING] if must else []


def make_flow(params: Params | None = None, jobs: int = 1) -> Any:
    """The flow object; parameters give retries, `jobs` the number of stages at once."""
    from prefect import flow
    from prefect.task_runners import ThreadPoolTaskRunner

    return flow(
        _reproduce,
        name="reproduce",
        task_runner=ThreadPoolTaskRunner(max_workers=jobs),
        validate_parameters=False,
    )


def _reproduce(targets: list[str] | None = None, force: bool = False, again: list[str] | None = None) -> Any:
    """Reproduce the stages named (default: all) and what they need."""
    root = Path.cwd()
    refuse_reentry()
    params, state = load_checked(root / "params.yaml"), state_dir(root)
    _services.use(state)
    checked = bool(_held)  # by `run`, before Prefect was imported
    with only_pipeline(state):
        again = again if checked else moved(params, root)
        dag = _dag.graph(root, tuple(targets or ()))
        if not (force or checked or again or _dag.stale(root, dag)):
            from prefect.states import Completed

            return Completed(name="Cached", message="nothing to do")
        return _run_stages(params, root, state, dag, set(dag) if force else set(again or ()))


def _run_stages(
    params: Params, root: Path, state: Path, dag: dict[str, tuple[str, ...]], force: set[str]
) -> Any:
    from tasks.summary import log_summary
    from tasks.tracking import Store, ended, tag_stage_hashes

    store = Store(params, root, state)
    children = Children()
    with ended(store.start_parent()) as parent, ending_children(children, lambda: parent.end("KILLED")):
        flow_run = _flow_run_id()
        parent.tags({"prefect.flow_run_id": flow_run} if flow_run else {})
        env = child_environment(parent.run_id)
        try:
            states = _submit(params, root, state, dag, force, children, env)
        finally:
            log_summary(parent, root, params)
            if not parent.degraded:  # MLflow is still there
                tag_stage_hashes(store, parent.run_id, root)
        _raise_first_failure(states)
    print(f"pipeline done: {_counts(states)}", flush=True)
    return None


def _flow_run_id() -> str:
    import prefect.runtime

    return prefect.runtime.flow_run.id or ""


def child_environment(parent_run: str) -> dict[str, str]:
    """What stages need to hang themselves under this run, and to share its temporary server."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        url = str(client.api_url)
    return _dag.environment(**{INSIDE: "1", _entry.PARENT_RUN: parent_run, "PREFECT_API_URL": url})


def _submit(
    params: Params,
    root: Path,
    state: Path,
    dag: dict[str, tuple[str, ...]],
    force: set[str],
    children: Children,
    env: dict[str, str],
) -> dict[str, Any]:
    """One task a stage, in order, those in `force` whatever DVC thinks; returns {stage: final state}."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    def one(stage: str) -> Any:
        return reproduce_stage(stage, root, state, stage in force, children, env)

    futures: dict[str, Any] = {}
    for stage, parents in dag.items():
        wanted = task(
            one, name=stage, task_run_name=stage, cache_policy=NO_CACHE,
            retries=params.prefect.retries, retry_delay_seconds=params.prefect.retry_delay_s,
        )  # fmt: skip
        futures[stage] = wanted.submit(stage, wait_for=[futures[p] for p in parents])
    for future in futures.values():
        future.wait()
    return {stage: future.state for stage, future in futures.items()}


def reproduce_stage(
    stage: str, root: Path, state: Path, force: bool, children: Children, env: dict[str, str]
) -> Any:
    """`dvc repro` of one stage. Returns a state named Cached when DVC found it unchanged."""
    import prefect.runtime
    from prefect.states import Completed

    began = time.time()
    (state / "failed" / f"{stage}.json").unlink(missing_ok=True)
    argv = _dag.command("--wait-for-lock", "repro", "-s", *(["--force"] if force else []), stage)
    code, output = children.run(
        argv, root, {**env, _entry.PARENT_TASK: str(prefect.runtime.task_run.id)}, stage
    )
    if code:
        raise _dag.failure(root, state, stage, output)
    if _dag.was_skipped(output, stage):
        print(f"{stage} | unchanged", flush=True)
        return Completed(name="Cached", message="unchanged")
    print(f"{stage} | done in {time.time() - began:.0f} s", flush=True)
    return Completed(message=f"ran in {time.time() - began:.0f} s")


def _raise_first_failure(states: dict[str, Any]) -> None:
    failed = [name for name, state in states.items() if state.is_failed() or state.is_crashed()]
    waiting = [name for name, state in states.items() if not state.is_completed() and name not in failed]
    if failed:
        state = states[failed[0]]
        cause = state.result(raise_on_failure=False)
        more = f"; not run because of it: {', '.join(waiting)}" if waiting else ""
        raise UserError(
            f"stage {failed[0]} failed: {describe(cause) if isinstance(cause, BaseException) else state.message}{more}"
        )
    if waiting:
        raise UserError(f"stages did not finish: {', '.join(waiting)}")


def _counts(states: dict[str, Any]) -> str:
    cached = sum(state.name == "Cached" for state in states.values())
    return f"{len(states) - cached} stage(s) ran, {cached} unchanged"


def main() -> None:
    """Bring every output up to date."""
    import argparse

    cli = argparse.ArgumentParser(prog="python -m flows.reproduce", description=main.__doc__)
    cli.add_argument("targets", nargs="*", help="stages (`train` means all of its variants); default: all")
    cli.add_argument("--force", action="store_true", help="run stages even when unchanged")
    cli.add_argument("--jobs", type=int, default=1, help="stages that may run at once (default 1)")
    cli.add_argument(
        "--keep-rows", action="store_true", help="use the staged rows though their source changed"
    )
    args = cli.parse_args()
    _entry.leave(run(Path.cwd(), tuple(args.targets), args.force, args.jobs, args.keep_rows))


def run(
    root: Path, targets: tuple[str, ...] = (), force: bool = False, jobs: int = 1, keep_rows: bool = False
) -> int:
    """The command without its parsing; returns the exit status."""
    state = state_dir(root)
    try:
        with _entry.interrupt_on_sigterm():
            refuse_reentry()
            params = load_checked(root / "params.yaml")
            with only_pipeline(state):
                again = moved(params, root, keep_rows)
                if not (force or again) and _dag.up_to_date(root, targets):
                    print("nothing to do: everything is up to date")
                    return 0
                dag = _dag.graph(root, targets)
                todo = list(dag) if force else _dag.stale(root, dag, again)
                if not todo:
                    print(f"nothing to do: {', '.join(targets)} and what they need are up to date")
                    return 0
                print(f"{len(todo)} of {len(dag)} stages to check or run: {', '.join(todo)}", flush=True)
                _services.use(state)
                _entry.check_prefect()
                run_pipeline(params, root, targets, force, jobs, again)
        return 0
    except BaseException as e:  # the boundary of the process
        if isinstance(e, SystemExit):
            raise
        if _entry.interrupted() or not isinstance(e, Exception):
            e = KeyboardInterrupt(str(e))
        return _entry.report_failure(e, "reproduce", state)


def __getattr__(name: str) -> Any:
    """`reproduce`, the flow object a deployment names, made only when asked for."""
    if name == "reproduce":
        return make_flow()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
