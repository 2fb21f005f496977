"""The scheduled deployment: `python -m flows.deploy [worker|nightly]` (`make worker`, `make nightly`).

Flows in: `prefect` of params.yaml, a running Prefect server (`make up`). Flows out: a process work pool with
the deployment `reproduce/nightly` of prefect.yaml; a detached worker that serves it; a run of it.
Invariant: repeating it changes nothing but the schedule's values.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from envace.config import Params, load
from envace.errors import EnvironmentUnready, StageFailed, boundary
from envace.io.addresses import ask_this_machine_directly
from envace.io.files import write_json
from flows import _dvc, _entry, services
from tasks.run import log_path, state_dir

DEPLOYMENT = "reproduce/nightly"


def prefect(root: Path, env: dict[str, str], *args: str) -> None:
    """Run Prefect's command line. Raises StageFailed with its last line."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", *args]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise StageFailed(f"prefect {' '.join(args)} failed: {said[-1] if said else 'no message'}")


def deploy(params: Params, root: Path) -> dict[str, str]:
    """Create the pool when missing, then the deployment; the environment that Prefect's commands need."""
    services.use(state_dir(root))
    if not os.environ.get("PREFECT_API_URL"):
        raise EnvironmentUnready(
            "a deployment needs a running Prefect server: start one with `make up`, or set PREFECT_API_URL"
        )
    _entry.check_prefect()
    p = params.prefect
    env = _dvc.environment(ENVACE_ROOT=str(root), ENVACE_WORK_POOL=p.work_pool, ENVACE_CRON=p.cron)
    prefect(root, env, "work-pool", "create", p.work_pool, "--type", "process", "--overwrite")
    prefect(root, env, "deploy", "--all", "--prefect-file", "prefect.yaml")
    print(f"deployment {DEPLOYMENT} on work pool {p.work_pool}, schedule {p.cron!r}")
    return env


def start_worker(params: Params, state: Path, env: dict[str, str]) -> None:
    """A worker of the pool, until `make down`; one at a time."""
    pool, known = params.prefect.work_pool, services.read(state)
    if not services.running(known.get("worker", {})):
        command = ["prefect", "worker", "start", "--pool", pool, "--name", f"envace-{os.getpid()}"]
        entry = services.start("prefect-worker", command, state, env)
        write_json(state / "services.json", known | {"worker": {"ui": f"work pool {pool}", **entry}})
    print(f"a worker serves work pool {pool} (log: {log_path(state, 'prefect-worker')}); make down stops it")


def main() -> None:
    """Register the scheduled pipeline with the running Prefect server; serve it, or run it now."""
    cli = argparse.ArgumentParser(prog="python -m flows.deploy", description=main.__doc__)
    cli.add_argument("what", nargs="?", choices=("register", "worker", "nightly"), default="register")
    what, root = cli.parse_args().what, Path.cwd()
    with boundary("deploy"):
        ask_this_machine_directly()
        params, state = load(), state_dir(root)
        env = deploy(params, root)
        if what == "worker":
            start_worker(params, state, env)
        elif what == "nightly":
            if not services.running(services.read(state).get("worker", {})):
                print("no worker of `make worker` runs here; the run waits for one", flush=True)
            command = [sys.executable, "-m", "prefect", "deployment", "run", DEPLOYMENT, "--watch"]
            raise SystemExit(subprocess.run(command, cwd=root, env=env).returncode)
        else:
            print("make worker serves it, make nightly runs it now")


if __name__ == "__main__":
    main()
