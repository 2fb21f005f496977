"""What every stage does before and after its own work.

Flows in: the command line, params.yaml, variables set by `flows.reproduce`. Flows out: one Prefect flow run, one
MLflow run in a truthful end state, an exit status, and on failure one message plus `.state/logs/<stage>.log`.
Invariant: parameters are checked before anything heavy is imported; a stage that exits 0 did all its work.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from envace.errors import EnvironmentUnready, UserError, describe
from envace.io import processes
from envace.io.redact import Redactor
from envace.params import load_checked
from flows import _services
from tasks.run import Run, log_path, state_dir, write_log

PARENT_TASK = "envacePARENT_TASK_RUN_ID"  # Prefect task run the stage's flow run hangs under
PARENT_RUN = "envacePARENT_RUN_ID"  # MLflow run the stage's run is a child of
INTERRUPTED = 130


class StageFlow:
    """A stage function with its command line; calling it runs the plain function."""

    def __init__(self, fn: Callable, name: str, sections: tuple[str, ...], policy: Callable[..., str] | None):
        self.fn, self.name, self.sections, self.policy = fn, name, sections, policy
        self.arguments = list(inspect.signature(fn, eval_str=True).parameters.values())[1:]
        self.__doc__ = fn.__doc__

    def __call__(self, run: Run, **arguments: Any) -> Any:
        return self.fn(run, **arguments)

    def full_name(self, arguments: dict[str, Any]) -> str:
        """The name DVC gives it: `train@envace-1`."""
        return self.name + ("@" + "-".join(map(str, arguments.values())) if arguments else "")

    def main(self, argv: list[str] | None = None) -> None:
        """Parse, run, exit."""
        cli = argparse.ArgumentParser(
            prog=f"python -m flows.{self.name}", description=(self.fn.__doc__ or "").strip()
        )
        for p in self.arguments:
            cli.add_argument(p.name, type=p.annotation)
        arguments = vars(cli.parse_args(argv))
        leave(run_stage(self, arguments, Path.cwd()))


def stage(name: str, *, sections: tuple[str, ...] = (), policy: Callable[..., str] | None = None) -> Callable:
    """Make a function `(run, **arguments)` a stage.

    sections: of params.yaml it uses, logged on its MLflow run. policy: (params, **arguments) -> name of the model
    it reads, for the lineage.
    """
    return lambda fn: StageFlow(fn, name, sections, policy)


def run_stage(stage: StageFlow, arguments: dict[str, Any], root: Path) -> int:
    """Run a stage as a process does; returns the exit status."""
    name, state = stage.full_name(arguments), state_dir(root)
    failed = state / "failed" / f"{name}.json"
    try:
        failed.unlink(missing_ok=True)
        with interrupt_on_sigterm():
            _run(stage, name, arguments, root)
        return 0
    except BaseException as e:  # the boundary of the process
        if isinstance(e, SystemExit):
            raise
        if interrupted() or not isinstance(e, Exception):
            e = KeyboardInterrupt(str(e))
        return report_failure(e, name, state)


def _run(stage: StageFlow, name: str, arguments: dict[str, Any], root: Path) -> None:
    params = load_checked(root / "params.yaml")
    run = Run(name, params, root)
    _services.use(run.state)
    with ExitStack() as stack:
        token = stack.enter_context(processes.owner(run.state, "stage", name))
        stack.enter_context(finishing(lambda: processes.retire(run.state, token)))
        check_prefect()
        run.state.mkdir(parents=True, exist_ok=True)
        from tasks.tracking import stage_run  # heavy from here on

        policy = stage.policy(params, **arguments) if stage.policy else ""
        run.log = stack.enter_context(stage_run(run, stage.sections, arguments, policy))
        stack.enter_context(finishing(lambda: run.log.end("KILLED")))
        run_as_flow(stage, run, arguments)
        note_cost(run)


def note_cost(run: Run) -> None:
    """How long the stage took: on its MLflow run, and in `.state/costs/` for the report."""
    seconds = time.time() - run.started
    run.metrics({"cost/seconds": seconds})
    path = run.state / "costs" / f"{run.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"seconds": seconds}))
    os.replace(part, path)


def run_as_flow(stage: StageFlow, run: Run, arguments: dict[str, Any]) -> None:
    """Run the stage's function as a Prefect flow, under the pipeline's task when there is one."""
    import prefect

    def body(**given: Any) -> None:
        run.log.tags({"prefect.flow_run_id": prefect.runtime.flow_run.id})
        try:
            with interrupt_on_sigterm(), run.redactor.guarding():  # Prefect put its own handler in place
                stage.fn(run, **given)
        except KeyboardInterrupt:
            note_signal()
            raise

    body.__name__, body.__doc__, body.__module__ = stage.name, stage.fn.__doc__, stage.fn.__module__
    body.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in stage.arguments])
    flow = prefect.flow(body, name=stage.name, flow_run_name=run.name, validate_parameters=False, retries=0)
    try:
        nested_call(flow, arguments, os.environ.get(PARENT_TASK, ""), run.name)
    except BaseException as e:
        if interrupted() or stems_from_signal(e):  # also when the signal took the temporary server with it
            raise KeyboardInterrupt("SIGTERM") from None
        raise


def nested_call(flow: Any, arguments: dict[str, Any], parent_task: str, name: str) -> None:
    """Call a flow so that it shows under a task of another process.

    Prefect offers no public way to attach to a parent; the one semi-internal call is kept here, and without
    a parent the flow is just called.
    """
    if not parent_task:
        flow(**arguments)
        return
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(
            flow, name=name, parameters=arguments, parent_task_run_id=UUID(parent_task)
        )
    run_flow(flow, flow_run=flow_run, parameters=arguments)


def check_prefect() -> None:
    """Refuse at once when a configured Prefect server is away. Any answer counts as alive."""
    url = os.environ.get("PREFECT_API_URL", "")
    if not url:
        return
    import httpx

    try:
        httpx.get(url.rstrip("/") + "/health", timeout=10)
    except httpx.HTTPError as e:
        raise EnvironmentUnready(
            f"Prefect at {Redactor().text(url)} does not answer: {e}; start it with `make up`, or unset PREFECT_API_URL to use a temporary server"
        ) from None


UNWIND_S = {"seconds": 8.0}  # after a signal; then the process ends itself

_signalled: list[bool] = []
_listening: list[bool] = []
_finishers: list[Callable[[], Any]] = []  # what must still happen when unwinding takes too long


def note_signal() -> None:
    """Remember that a signal arrived, whoever handles it, and bound the time unwinding may take.

    Ctrl-C also reaches Prefect's temporary server; its client then retries for minutes before it gives up.
    """
    if not _signalled:
        threading.Thread(target=_leave_later, args=(UNWIND_S["seconds"],), daemon=True).start()
    _signalled.append(True)


def _listen(pipe: int) -> None:
    """Sees every signal of this process, also those Prefect's handlers take."""
    while numbers := os.read(pipe, 16):
        if set(numbers) & {signal.SIGTERM, signal.SIGINT}:
            note_signal()
            return


def _leave_later(seconds: float) -> None:
    time.sleep(seconds)
    try:
        for finish in reversed(_finishers):
            finish()
    finally:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)


@contextmanager
def finishing(finish: Callable[[], Any]) -> Iterator[None]:
    """Have `finish` called if this block is interrupted and does not unwind in time."""
    _finishers.append(finish)
    try:
        yield
    finally:
        _finishers.remove(finish)


def interrupted() -> bool:
    """SIGTERM arrived since the stage began."""
    return bool(_signalled)


def stems_from_signal(error: BaseException) -> bool:
    """A signal, ours or one Prefect caught, is in the chain of causes."""
    from prefect.exceptions import ExternalSignal

    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        if isinstance(link, (KeyboardInterrupt, ExternalSignal)):
            return True
        seen.append(link)
        link = link.__cause__ or link.__context__
    return False


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that runs get their end state and children are ended."""

    def unwind(*_: Any) -> None:
        note_signal()
        raise KeyboardInterrupt("interrupted by a signal")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _listening:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=_listen, args=(reader,), daemon=True).start()
        _listening.append(True)
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, unwind) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def leave(code: int) -> None:
    """Exit. After an interrupt at once: Prefect's exit handlers would wait minutes for a server that is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code == INTERRUPTED:
        os._exit(code)
    sys.exit(code)


def report_failure(error: BaseException, name: str, state: Path) -> int:
    """One message on the terminal, the traceback in the log; returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        code, message = INTERRUPTED, "interrupted"
    else:
        code, message = (error.exit_code if isinstance(error, UserError) else 1), describe(error)
    log = log_path(state, name)
    redact = Redactor().text
    try:
        write_log(log, redact("".join(traceback.format_exception(error))))
        if not isinstance(error, KeyboardInterrupt) and "log:" not in message:
            message += f" (log: {shown(log)})"
        note = state / "failed" / f"{name}.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"exit": code, "message": redact(message)}))
    except OSError as e:
        message += f" (and no log could be written: {e})"
    print(f"{name}: {redact(message)}", file=sys.stderr, flush=True)
    return code


def shown(path: Path) -> Path:
    """Relative to the project where possible."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
