"""The Prefect and MLflow servers `make up` started, as stages see them.

Flows in: `.state/services.json`. Flows out: PREFECT_API_URL and MLFLOW_TRACKING_URI for this process.
Invariant: a variable the user set wins; a server whose process is gone is not used (its store is the local one
anyway, so nothing is lost by opening that directly).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from envace.io.processes import Identity, alive, here

VARIABLES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}


def read(state: Path) -> dict[str, dict[str, Any]]:
    """{service: {url, ui, host, boot, pid, start}} as written by `flows.services up`."""
    path = state / "services.json"
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text())
    except ValueError:
        return {}


def running(entry: dict[str, Any]) -> bool:
    who = Identity.read(entry)
    return who is not None and here(who) and alive(who)


def use(state: Path) -> dict[str, str]:
    """Point this process at the running servers; returns what was set."""
    chosen = {}
    for service, entry in read(state).items():
        variable = VARIABLES[service]
        if os.environ.get(variable):
            continue
        if running(entry):
            os.environ[variable] = chosen[variable] = entry["url"]
        else:
            print(f"note: the {service} server of `make up` is gone; going on without it", file=sys.stderr)
    return chosen
