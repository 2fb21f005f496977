"""The paper's own numbers, shown beside a benchmark only where that benchmark was run.

Flows in: nothing. Flows out: values in percent, as printed; a value that is not printed is absent.
Invariant: a row of these is always labelled "paper" and never enters a computation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envace.report.table import Table, table

COLUMNS = {"bfcl": "BFCL-v4", "tau2": "τ²-Bench", "vita": "VitaBench", "finmcp": "FinMCP-Bench"}
DIGITS = {"bfcl": 2, "tau2": 1, "vita": 1, "overall": 2, "finmcp": 2}  # as printed; ours are written alike
MAIN: dict[str, dict[str, float]] = {  # overall: plain mean of the three
    "Qwen3-1.7B": {"bfcl": 30.89, "tau2": 10.4, "vita": 1.9, "overall": 14.41},
    "Qwen3-4B": {"bfcl": 41.80, "tau2": 27.9, "vita": 9.6, "overall": 26.43},
    "Qwen3-8B": {"bfcl": 44.04, "tau2": 30.0, "vita": 11.4, "overall": 28.48},
    "Simulator-8B": {"bfcl": 19.78, "tau2": 38.5, "vita": 1.8, "overall": 20.03},
    "TOUCAN-7B": {"bfcl": 35.33, "tau2": 22.4, "vita": 2.8, "overall": 20.18},
    "AWM-8B": {"bfcl": 44.29, "tau2": 31.2, "vita": 10.2, "overall": 28.56},
    "AWM-14B": {"bfcl": 47.32, "tau2": 30.7, "vita": 19.6, "overall": 32.54},
    "EnvScaler-8B": {"bfcl": 47.07, "tau2": 32.9, "vita": 15.8, "overall": 31.92},
    "ScaleEnv-8B": {"tau2": 38.5, "vita": 15.0},
    "EnvACE-1.7B": {"bfcl": 31.81, "tau2": 15.3, "vita": 3.2, "overall": 16.77},
    "EnvACE-8B": {"bfcl": 46.04, "tau2": 36.7, "vita": 16.0, "overall": 32.91},
}
FINMCP: dict[str, dict[str, float]] = {  # micro, all conversations; no EMR is printed
    "AWM-8B": {"tf1": 42.50},
    "EnvScaler-8B": {"tf1": 43.68},
    "EnvACE-8B": {"tp": 54.04, "tr": 41.23, "tf1": 46.78},
}

CURVE_OF = "EnvACE-8B"
CURVES: dict[str, tuple[tuple[int, float], ...]] = {"tau2": ((50, 30.0), (470, 36.7))}
"""Benchmark -> (step, value)."""


def printed_curves(benchmarks: Sequence[str]) -> Table | None:
    """The points of training curves that the paper names, of these benchmarks."""
    rows = [
        (COLUMNS[b], CURVE_OF, str(step), f"{value:.{DIGITS[b]}f}")
        for b in benchmarks
        for step, value in CURVES.get(b, ())
    ]
    note = "In percent, as printed in the paper; not measured here."
    return table("benchmark | model | step | value", rows, note)


def same_model(policy: str, printed: str) -> bool:
    """Whether a policy bears the name of a model of the paper: `qwen3-8b` and `Qwen3-8B`."""
    return re.sub(r"[^a-z0-9]", "", policy.lower()) == re.sub(r"[^a-z0-9]", "", printed.lower())
