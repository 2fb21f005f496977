"""The Prefect and MLflow servers, started and stopped by hand: `python -m flows.services up|down|status`.

Flows in: ports of params.yaml. Flows out: two detached processes, `.state/services.json` naming them, logs
under `.state/logs/`, and their addresses in the environment of stages (`use`).
Invariant: both servers keep their data under `.state/`, the same stores stages use without them; only
processes named in services.json, with the same start time, are ever stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from envace.config import Params, load
from envace.errors import EnvironmentUnready, boundary
from envace.io import children, processes
from envace.io.files import write_json
from tasks.run import log_path, state_dir

START_S = 180.0
HOST = "127.0.0.1"
VARIABLES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
Entry = dict[str, str | int]
"""{url, ui, health, port} of a server, and the identity of its process."""


def read(state: Path) -> dict[str, Entry]:
    """{service: entry} as `up` wrote it."""
    try:
        found: dict[str, Entry] = json.loads((state / "services.json").read_text())
        return found
    except (FileNotFoundError, ValueError):
        return {}


def running(entry: Entry) -> bool:
    """Its process lives."""
    who = processes.ProcessIdentity.read(entry)
    return who is not None and processes.here(who) and processes.alive(who)


def use(state: Path) -> dict[str, str]:
    """Point this process at the running servers; returns what was set. A variable the user set wins."""
    chosen = {}
    for service, entry in read(state).items():
        variable = VARIABLES[service]
        if os.environ.get(variable):
            continue
        if running(entry):
            os.environ[variable] = chosen[variable] = str(entry["url"])
        else:
            print(f"note: the {service} server of `make up` is gone; going on without it", file=sys.stderr)
    return chosen


def up(params: Params, state: Path) -> None:
    """Start what is not running yet; returns when both answer."""
    from envace.track.store import connect, default_uri

    known = {name: entry for name, entry in read(state).items() if running(entry)}
    ports = {"prefect": params.prefect.port, "mlflow": params.mlflow.port}
    wanted = {name: port for name, port in ports.items() if name not in known}
    for name, port in wanted.items():
        check_port(name, port)
    if "mlflow" in wanted:
        connect(default_uri(state), state)  # the database is made once, here
    started = {name: _start(name, port, state) for name, port in wanted.items()}
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


def _command(service: str, port: int, state: Path) -> list[str]:
    from envace.track.store import default_uri

    address = ["--host", HOST, "--port", str(port)]
    if service == "prefect":
        return [sys.executable, "-m", "prefect", "server", "start", *address]
    artifacts = (state / "mlartifacts").resolve().as_uri()
    stores = ["--backend-store-uri", default_uri(state), "--artifacts-destination", artifacts]
    return [sys.executable, "-m", "mlflow", "server", *address, "--workers", "1", *stores]


def _start(service: str, port: int, state: Path) -> Entry:
    base = f"http://{HOST}:{port}"
    api = f"{base}/api" if service == "prefect" else base
    env = {k: v for k, v in os.environ.items() if k not in (*VARIABLES.values(), processes.OWNERS)}
    if service == "prefect":
        env["PREFECT_SERVER_UI_API_URL"] = api
    log = log_path(state, f"{service}-server")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = children.start(_command(service, port, state), env=env, output=out)
    where: Entry = {"url": api, "ui": base, "health": f"{api}/health", "port": port}
    return {**where, **asdict(processes.identify(child.popen.pid))}


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
    """Stop the servers `up` started."""
    for name, entry in read(state).items():
        print(f"{name}: {'stopped' if _stop(entry) else 'was not running'}")
    (state / "services.json").unlink(missing_ok=True)


def status(state: Path) -> None:
    """One line a server."""
    found = read(state)
    for name in VARIABLES:
        entry = found.get(name)
        alive = entry is not None and running(entry)
        print(f"{name}: {entry['ui']} (pid {entry['pid']})" if entry and alive else f"{name}: not running")


def main() -> None:
    """Start, stop or show the Prefect and MLflow servers of this project."""
    cli = argparse.ArgumentParser(prog="python -m flows.services", description=main.__doc__)
    cli.add_argument("what", choices=("up", "down", "status"))
    what, state = cli.parse_args().what, state_dir(Path.cwd())
    with boundary("services"):
        state.mkdir(parents=True, exist_ok=True)
        if what == "up":
            up(load(), state)
        else:
            {"down": down, "status": status}[what](state)


if __name__ == "__main__":
    main()
