"""The scheduled deployment: `python -m flows.deploy` makes the work pool and registers prefect.yaml.

Flows in: `prefect` of params.yaml, a running Prefect server. Flows out: a process work pool and the
deployment `reproduce/nightly` on it.
Invariant: repeating it changes nothing but the schedule's values.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from envace.config import Params, load
from envace.errors import EnvironmentUnready, StageFailed, boundary
from flows import _entry, services
from tasks.run import state_dir


def environment(params: Params, root: Path) -> dict[str, str]:
    """What prefect.yaml's templates name."""
    return {
        **os.environ,
        "ENVACE_ROOT": str(root),
        "ENVACE_WORK_POOL": params.prefect.work_pool,
        "ENVACE_CRON": params.prefect.cron,
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", ""),
    }


def prefect(root: Path, env: dict[str, str], *args: str) -> str:
    """Run Prefect's command line. Raises StageFailed with its last line."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *args],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise StageFailed(f"prefect {' '.join(args)} failed: {said[-1] if said else 'no message'}")
    return done.stdout


def deploy(params: Params, root: Path) -> None:
    """Create the pool when missing, then the deployment."""
    services.use(state_dir(root))
    if not os.environ.get("PREFECT_API_URL"):
        raise EnvironmentUnready(
            "a deployment needs a running Prefect server: start one with `make up`, or set PREFECT_API_URL"
        )
    _entry.check_prefect()
    env, pool = environment(params, root), params.prefect.work_pool
    prefect(root, env, "work-pool", "create", pool, "--type", "process", "--overwrite")
    prefect(root, env, "deploy", "--all", "--prefect-file", "prefect.yaml")
    print(f"deployment reproduce/nightly on work pool {pool}, schedule {params.prefect.cron!r}")
    prefix = f"PREFECT_API_URL={env['PREFECT_API_URL']} .venv/bin/prefect"
    print(f"serve it: {prefix} worker start --pool {pool}")
    print(f"run now:  {prefix} deployment run reproduce/nightly --watch")


def main() -> None:
    """Register the scheduled pipeline with the running Prefect server."""
    import argparse

    argparse.ArgumentParser(prog="python -m flows.deploy", description=main.__doc__).parse_args()
    with boundary("deploy"):
        deploy(load(), Path.cwd())


if __name__ == "__main__":
    main()
