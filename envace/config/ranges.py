"""Types of values in params.yaml: ranges of numbers, lists that may be empty, names of benchmarks.

Flows in: nothing. Flows out: annotations of the sections' fields, which `envace.config.read` checks values against.
Invariant: both ends of a range are allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True)
class Range:
    """Both ends are allowed values."""

    low: float = -math.inf
    high: float = math.inf


MAY_BE_EMPTY = "may be empty"  # of a list; others must name something
Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0)]
Positive = Annotated[float, Range(1e-12)]
Port = Annotated[int, Range(1024, 65535)]
Benchmark = Literal["desk", "desk-unseen", "files"]  # played in this process; harnesses are under `bench`
Harness = Literal["bfcl", "tau2", "vita", "finmcp"]
Curve = Literal["desk", "desk-unseen", "files", "bfcl", "tau2", "vita", "finmcp"]  # both kinds
