"""The Prefect and MLflow servers, started and stopped by hand: `python -m flows.services up|down|status`.

Flows in: ports of params.yaml. Flows out: two detached processes, `.state/services.json` naming them, logs under
`.state/logs/`.
Invariant: both servers keep their data under `.state/`, the same stores stages use without them; only processes
named in services.json, with the same start time, are ever stopped.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envace.config import Params, load
from envace.errors import EnvironmentUnready, boundary
from envace.io import children, processes
from envace.track.client import default_uri
from flows import _services
from tasks.run import state_dir

START_S = 180.0
HOST = "127.0.0.1"


def port_of(service: str, params: Params) -> int:
    return {"prefect": params.prefect.port, "mlflow": params.mlflow.port}[service]


def command(service: str, port: int, state: Path) -> list[str]:
    if service == "prefect":
        return [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    return [
        sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1",
        "--backend-store-uri", default_uri(state), "--artifacts-destination", (state / "mlartifacts").resolve().as_uri(),
    ]  # fmt: skip


def addresses(service: str, port: int) -> dict[str, str]:
    base = f"http://{HOST}:{port}"
    return {
        "url": f"{base}/api" if service == "prefect" else base,
        "ui": base,
        "health": f"{base}/api/health" if service == "prefect" else f"{base}/health",
    }


def check_port(service: str, port: int) -> None:
    """Raises EnvironmentUnready when somebody listens there."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError as e:
            raise EnvironmentUnready(
                f"port {port} for {service} is in use ({e.strerror}); stop what listens there or change {service}.port in params.yaml"
            ) from None


def up(params: Params, state: Path) -> None:
    """Start what is not running yet; returns when both answer."""
    from envace.track.client import connect

    known = {name: entry for name, entry in _services.read(state).items() if _services.running(entry)}
    wanted = [name for name in _services.VARIABLES if name not in known]
    for name in wanted:
        check_port(name, port_of(name, params))
    if "mlflow" in wanted:
        connect(default_uri(state), state)  # the database is made once, here
    started = {name: _start(name, port_of(name, params), state) for name in wanted}
    _write(state, known | started)
    try:
        for name in wanted:
            _wait(name, started[name], state)
    except EnvironmentUnready:
        for entry in started.values():
            _stop(entry)
        _write(state, known)
        raise
    status(state)


def _start(service: str, port: int, state: Path) -> dict[str, Any]:
    log = state / "logs" / f"{service}-server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    where = addresses(service, port)
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", processes.OWNERS)
    }
    env |= {"PREFECT_SERVER_UI_API_URL": addresses("prefect", port)["url"]} if service == "prefect" else {}
    with log.open("ab") as out:
        child = children.start(command(service, port, state), env=env, output=out)
    return {**where, "port": port, **asdict(processes.identify(child.popen.pid))}


def _wait(service: str, entry: dict[str, Any], state: Path) -> None:
    import httpx

    deadline = time.time() + START_S
    while time.time() < deadline:
        if not _services.running(entry):
            break
        try:
            if httpx.get(entry["health"], timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.5)
    raise EnvironmentUnready(
        f"the {service} server did not start on port {entry['port']} (log: {state}/logs/{service}-server.log)"
    )


def _stop(entry: dict[str, Any]) -> bool:
    if not _services.running(entry):
        return False
    processes.end(lambda: processes.family(entry["pid"]), grace_s=15.0)
    return True


def down(state: Path) -> None:
    """Stop the servers `up` started."""
    for name, entry in _services.read(state).items():
        print(f"{name}: {'stopped' if _stop(entry) else 'was not running'}")
    (state / "services.json").unlink(missing_ok=True)


def status(state: Path) -> None:
    """One line a server."""
    found = _services.read(state)
    for name in _services.VARIABLES:
        entry = found.get(name)
        print(
            f"{name}: {entry['ui']} (pid {entry['pid']})"
            if entry and _services.running(entry)
            else f"{name}: not running"
        )


def _write(state: Path, entries: dict[str, dict[str, Any]]) -> None:
    part = state / "services.json.part"
    part.write_text(json.dumps(entries, indent=1))
    os.replace(part, state / "services.json")


def main() -> None:
    """Start, stop or show the Prefect and MLflow servers of this project."""
    import argparse

    cli = argparse.ArgumentParser(prog="python -m flows.services", description=main.__doc__)
    cli.add_argument("what", choices=("up", "down", "status"))
    what = cli.parse_args().what
    state = state_dir(Path.cwd())
    with boundary("services"):
        state.mkdir(parents=True, exist_ok=True)
        if what == "up":
            up(load(), state)
        else:
            {"down": down, "status": status}[what](state)


if __name__ == "__main__":
    main()
