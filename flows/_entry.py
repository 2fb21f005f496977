"""What every stage does before and after its own work.

Flows in: the command line, params.yaml, variables set by `flows.reproduce`. Flows out: one Prefect flow run,
one MLflow run in a truthful end state, an exit status, and on failure one message plus
`.state/logs/<stage>.log`.
Invariant: parameters are checked before anything heavy is imported; a stage that exits 0 did all its work.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

from envace.config import Params
from envace.errors import EnvironmentUnready, UserError, describe
from envace.io import processes
from envace.io.addresses import ask_this_machine_directly
from envace.io.files import write_text
from envace.io.redact import Redactor
from envace.params import load_checked
from flows import _signals, services
from tasks.run import Run, log_path, state_dir, write_log

PARENT_TASK = "ENVACE_PARENT_TASK_RUN_ID"  # Prefect task run the stage's flow run hangs under
PARENT_RUN = "ENVACE_PARENT_RUN_ID"  # MLflow run the stage's run is a child of
Arguments = Mapping[str, str | int]
Work = Callable[..., None]


@dataclass(frozen=True, slots=True)
class StageFlow:
    """A stage's function with its command line."""

    fn: Work
    name: str
    sections: tuple[str, ...]
    """Of params.yaml, that it uses: logged on its MLflow run."""
    policy: Callable[..., str] | None
    """(params, **arguments) -> name of the model it reads, for the lineage."""

    @property
    def arguments(self) -> list[inspect.Parameter]:
        """What it takes beside the run."""
        return list(inspect.signature(self.fn, eval_str=True).parameters.values())[1:]

    def full_name(self, arguments: Arguments) -> str:
        """The name DVC gives it: `train@envace-1`."""
        return self.name + ("@" + "-".join(map(str, arguments.values())) if arguments else "")

    def main(self, argv: list[str] | None = None) -> None:
        """Parse, run, exit."""
        cli = argparse.ArgumentParser(
            prog=f"python -m flows.{self.name}", description=inspect.getdoc(self.fn)
        )
        for p in self.arguments:
            cli.add_argument(p.name, type=p.annotation)
        leave(run_stage(self, vars(cli.parse_args(argv)), Path.cwd()))


def stage(
    name: str, *, sections: tuple[str, ...] = (), policy: Callable[..., str] | None = None
) -> Callable[[Work], StageFlow]:
    """Make a function `(run, **arguments)` a stage; what the others mean stands at `StageFlow`."""
    return lambda fn: StageFlow(fn, name, sections, policy)


def run_stage(stage: StageFlow, arguments: Arguments, root: Path) -> int:
    """Run a stage as a process does; returns the exit status."""
    name, state = stage.full_name(arguments), state_dir(root)
    return run_command(name, state, partial(_run, stage, name, arguments, root))


def run_command(name: str, state: Path, work: Callable[[], None]) -> int:
    """Do the work of a process, unwinding on a signal; whatever stops it is told. Returns the exit status."""
    try:
        with _signals.interruptible():
            (state / "failed" / f"{name}.json").unlink(missing_ok=True)
            ask_this_machine_directly()
            work()
        return 0
    except SystemExit:
        raise
    except BaseException as e:  # the boundary of the process
        if _signals.interrupted() or not isinstance(e, Exception):
            e = KeyboardInterrupt(str(e))
        return report_failure(e, name, state)


def _run(stage: StageFlow, name: str, arguments: Arguments, root: Path) -> None:
    params: Params = load_checked(root / "params.yaml")
    run = Run(name, params, root)
    services.use(run.state)
    with ExitStack() as stack:
        token = stack.enter_context(processes.owner(run.state, "stage", name))
        stack.enter_context(_signals.finishing(partial(processes.retire, run.state, token)))
        check_prefect()
        from tasks.tracking import stage_run  # heavy from here on

        policy = stage.policy(params, **arguments) if stage.policy else ""
        run.log = stack.enter_context(stage_run(run, stage.sections, arguments, policy))
        stack.enter_context(_signals.finishing(partial(run.log.end, "KILLED")))
        run_as_flow(stage, run, arguments)
        seconds = time.monotonic() - run.started  # on its MLflow run, and in `.state/costs/` for the report
        run.metrics({"cost/seconds": seconds})
        write_text(run.state / "costs" / f"{run.name}.json", json.dumps({"seconds": seconds}))


def run_as_flow(stage: StageFlow, run: Run, arguments: Arguments) -> None:
    """Run the stage's function as a Prefect flow, under the pipeline's task when there is one. Its page shows
    what the stage says and leads to its MLflow run.

    Prefect offers no public way to attach a flow run to a task of another process; the one semi-internal call
    is kept here, and without a parent the flow is just called.
    """
    import prefect
    from prefect.artifacts import create_link_artifact

    def body(**given: str | int) -> None:
        run.log.tags({"prefect.flow_run_id": prefect.runtime.flow_run.id})
        if link := services.link_of_run(run.log):
            create_link_artifact(link, f"MLflow run of {run.name}", key="mlflow-run")
        run.also_say = prefect.get_run_logger().info
        try:
            with _signals.interruptible(), run.redactor.guarding():  # Prefect put its own handler in place
                stage.fn(run, **given)
        except KeyboardInterrupt:
            _signals.note_signal()
            raise

    body.__name__, body.__doc__, body.__module__ = stage.name, stage.fn.__doc__, stage.fn.__module__
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in stage.arguments]
    setattr(body, "__signature__", inspect.Signature(parameters))  # noqa: B010
    flow = prefect.flow(name=stage.name, flow_run_name=run.name, validate_parameters=False, retries=0)(body)
    parent, given = os.environ.get(PARENT_TASK, ""), dict(arguments)
    try:
        if not parent:
            flow(**given)
            return
        from prefect.client.orchestration import get_client
        from prefect.flow_engine import run_flow

        with get_client(sync_client=True) as client:
            flow_run = client.create_flow_run(
                flow, name=run.name, parameters=given, parent_task_run_id=UUID(parent)
            )
        run_flow(flow, flow_run=flow_run, parameters=given)
    except BaseException:
        if _signals.interrupted():  # also when the signal took the temporary server with it
            raise KeyboardInterrupt("SIGTERM") from None
        raise


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
            f"Prefect at {Redactor().text(url)} does not answer: {e}; start it with `make up`, or unset "
            "PREFECT_API_URL to use a temporary server"
        ) from None


def leave(code: int) -> None:
    """Exit. After an interrupt at once: Prefect's exit handlers would wait minutes for a server gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code == _signals.INTERRUPTED:
        os._exit(code)
    sys.exit(code)


def report_failure(error: BaseException, name: str, state: Path) -> int:
    """One message on the terminal, the traceback in the log; returns the exit status."""
    log, redact = log_path(state, name), Redactor().text
    if isinstance(error, KeyboardInterrupt):
        code, message = _signals.INTERRUPTED, "interrupted"
    else:
        code, message = (error.exit_code if isinstance(error, UserError) else 1), describe(error)
        shown = log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log
        message += "" if "log:" in message else f" (log: {shown})"
    try:
        write_log(log, redact("".join(traceback.format_exception(error))))
        write_text(state / "failed" / f"{name}.json", json.dumps({"exit": code, "message": redact(message)}))
    except (OSError, EnvironmentUnready) as e:
        message += f" (and no log could be written: {e})"
    print(f"{name}: {redact(message)}", file=sys.stderr, flush=True)
    return code
