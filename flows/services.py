"""The Prefect and MLflow servers, started and stopped by hand: `python -m flows.services up|down|status`.

Flows in: ports of params.yaml. Flows out: detached processes, `.state/services.json` naming them, logs under
`.state/logs/`, and their addresses in the environment of stages (`use`).
Invariant: both servers keep their data under `.state/`, the same stores stages use without them; only
processes named in services.json, with the same start time, are ever stopped.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from envace.config import Params, load
from envace.errors import EnvironmentUnready, boundary
from envace.io import children, processes
from envace.io.addresses import ask_this_machine_directly
from envace.io.files import read_state, write_json
from envace.track.run_log import RunLog
from envace.track.store import artifacts_uri, connect, default_uri, mend_locations
from tasks.run import log_path, state_dir

START_S = 180.0
HOST = "127.0.0.1"
VARIABLES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
Entry = dict[str, str | int]
"""{url, ui, health, port} of a server, and the identity of its process."""


def read(state: Path) -> dict[str, Entry]:
    """{service: entry} as it was written. Raises EnvironmentUnready for a damaged file."""
    found = read_state(state / "services.json", dict, "delete it and run make up again") or {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def running(entry: Entry) -> bool:
    """Its process lives."""
    who = processes.ProcessIdentity.read(entry)
    return who is not None and processes.alive(who)


def use(state: Path) -> dict[str, str]:
    """Point this process at the running servers; returns what was set. A variable the user set wins."""
    chosen = {}
    for service, entry in read(state).items():
        variable = VARIABLES.get(service, "")
        if not variable or os.environ.get(variable):
            continue
        if running(entry):
            os.environ[variable] = chosen[variable] = str(entry["url"])
        else:
            print(f"note: the {service} server of `make up` is gone; going on without it", file=sys.stderr)
    return chosen


def link_of_run(log: RunLog) -> str:
    """The page of an MLflow run; empty without a server."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri.startswith("http") or log.degraded:
        return ""
    experiment = log.client.get_run(log.run_id).info.experiment_id
    return f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{log.run_id}"


def up(params: Params, state: Path) -> None:
    """Start what is not running yet; returns when both answer."""
    known = {name: entry for name, entry in read(state).items() if running(entry)}
    ports = {"prefect": params.prefect.port, "mlflow": params.mlflow.port}
    wanted = {name: port for name, port in ports.items() if name not in known}
    for name, port in wanted.items():
        check_port(name, port)
    if "mlflow" in wanted:
        connect(default_uri(state), state)  # the database is made once, here
    started = {name: _start_server(name, port, state) for name, port in wanted.items()}
    write_json(state / "services.json", known | started)
    try:
        for name, entry in started.items():
            _wait(name, entry, log_path(state, f"{name}-server"))
    except EnvironmentUnready:
        for entry in started.values():
            _stop(entry)
        write_json(state / "services.json", known)
        raise
    status(state)


def check_port(service: str, port: int) -> None:
    """Raises EnvironmentUnready when somebody listens there."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError as e:
            raise EnvironmentUnready(
                f"port {port} for {service} is in use ({e.strerror}); stop what listens there or change "
                f"{service}.port in params.yaml"
            ) from None


def _start_server(service: str, port: int, state: Path) -> Entry:
    base, address = f"http://{HOST}:{port}", ["--host", HOST, "--port", str(port)]
    if service == "prefect":
        api, command, env = f"{base}/api", ["prefect", "server", "start"], {}
        env["PREFECT_SERVER_UI_API_URL"] = api
    else:
        api, command, env = base, ["mlflow", "server", "--workers", "1"], {}
        command += [
            "--backend-store-uri",
            default_uri(state),
            "--artifacts-destination",
            artifacts_uri(state),
        ]
    who = start(f"{service}-server", [*command, *address], state, env, without=tuple(VARIABLES.values()))
    return {"url": api, "ui": base, "health": f"{api}/health", "port": port, **who}


def start(
    name: str, module: Sequence[str], state: Path, env: dict[str, str], without: Sequence[str] = ()
) -> Entry:
    """Start `python -m ...` detached, its output in a log; the identity of its process."""
    log, left_out = log_path(state, name), {*without, processes.OWNERS}
    log.parent.mkdir(parents=True, exist_ok=True)
    given = {k: v for k, v in os.environ.items() if k not in left_out} | env
    with log.open("ab") as out:
        child = children.start([sys.executable, "-m", *module], env=given, output=out)
    return asdict(processes.identify(child.popen.pid))


def _wait(service: str, entry: Entry, log: Path) -> None:
    import httpx

    deadline = time.monotonic() + START_S
    while running(entry) and time.monotonic() < deadline:
        try:
            if httpx.get(str(entry["health"]), timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.5)
    raise EnvironmentUnready(f"the {service} server did not start on port {entry['port']} (log: {log})")


def _stop(entry: Entry) -> bool:
    alive = running(entry)
    if alive:
        processes.end(partial(processes.family, int(entry["pid"])), grace_s=15.0)
    return alive


def down(state: Path) -> None:
    """Stop the worker and the servers that were started here."""
    for name, entry in reversed(read(state).items()):
        print(f"{name}: {'stopped' if _stop(entry) else 'was not running'}")
    (state / "services.json").unlink(missing_ok=True)
    if (state / "mlflow.db").is_file():
        mend_locations(state)  # what the server wrote is found without it, too


def status(state: Path) -> None:
    """One line a server, and one for the worker where there is one."""
    found = read(state)
    for name in dict.fromkeys((*VARIABLES, *found)):
        entry = found.get(name, {})
        print(f"{name}: {entry['ui']} (pid {entry['pid']})" if running(entry) else f"{name}: not running")


def main() -> None:
    """Start, stop or show the Prefect and MLflow servers of this project."""
    cli = argparse.ArgumentParser(prog="python -m flows.services", description=main.__doc__)
    cli.add_argument("what", choices=("up", "down", "status"))
    what, state = cli.parse_args().what, state_dir(Path.cwd())
    with boundary("services"):
        ask_this_machine_directly()
        state.mkdir(parents=True, exist_ok=True)
        if what == "up":
            up(load(), state)
        else:
            {"down": down, "status": status}[what](state)


if __name__ == "__main__":
    main()
