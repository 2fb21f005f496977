"""The paper's own numbers, shown beside a benchmark only where that benchmark was run.

Flows in: names of benchmarks. Flows out: a `Table`. Values in percent, as printed.
Invariant: never mixed into a table of measured values.
"""

from __future__ import annotations

from envace.view.table import Table, fixed, table

COLUMNS = {"bfcl": "BFCL v4", "tau2": "τ²-bench", "vita": "VitaBench", "finmcp": "FinMCP (TF1)"}
PRINTED: dict[str, dict[str, float]] = {
    "Qwen3-1.7B": {"bfcl": 30.89, "tau2": 10.4, "vita": 1.9},
    "Qwen3-4B": {"bfcl": 41.80, "tau2": 27.9, "vita": 9.6},
    "Qwen3-8B": {"bfcl": 44.04, "tau2": 30.0, "vita": 11.4},
    "Simulator-8B": {"bfcl": 19.78, "tau2": 38.5, "vita": 1.8},
    "TOUCAN-7B": {"bfcl": 35.33, "tau2": 22.4, "vita": 2.8},
    "AWM-8B": {"bfcl": 44.29, "tau2": 31.2, "vita": 10.2, "finmcp": 42.50},
    "AWM-14B": {"bfcl": 47.32, "tau2": 30.7, "vita": 19.6},
    "EnvScaler-8B": {"bfcl": 47.07, "tau2": 32.9, "vita": 15.8, "finmcp": 43.68},
    "ScaleEnv-8B": {"tau2": 38.5, "vita": 15.0},
    "EnvACE-1.7B": {"bfcl": 31.81, "tau2": 15.3, "vita": 3.2},
    "EnvACE-8B": {"bfcl": 46.04, "tau2": 36.7, "vita": 16.0, "finmcp": 46.78},
}


def printed(benchmarks: list[str]) -> Table | None:
    """The columns of `benchmarks` that the paper has."""
    known = [b for b in COLUMNS if b in benchmarks]
    rows = (
        [(name, *(fixed(values.get(b), 2) for b in known)) for name, values in PRINTED.items()]
        if known
        else []
    )
    return table(
        ("model", *(COLUMNS[b] for b in known)),
        rows,
        note="In percent, as printed in the paper; not measured here.",
    )
