"""Scores in words and as metrics, and what a pipeline's own MLflow run says: headlines and curves.

Flows in: score records; result files of the current parameters, cached or new. Flows out: metrics and lines.
Invariant: read only; a file that is not there yet, or a score that was withheld, is absent. Names have one
slash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from envace.config import Params
from envace.track.run_log import RunLog
from envace.types import JSON, ScoreRecord

OURS = "envace"  # the harness of benchmarks that are played in this process
MOST_HEADLINES = 12
HEADLINES = (
    "eval/gain",
    "eval/gain_low",
    "eval/gain_high",
    "train/reward_first",
    "train/reward_last",
    "fidelity/exact",
    "gap/collusion",
    "train/tokens",
    "train/seconds",
    "report/missing",
)


class Bounded(Protocol):
    """Anything with an interval."""

    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def with_bounds(name: str, s: ScoreRecord) -> dict[str, float]:
    """A score as metrics: itself, and its interval where it has one."""
    values = {name: s.score, f"{name}_low": s.low, f"{name}_high": s.high}
    return {k: v for k, v in values.items() if v is not None}


def interval(s: Bounded) -> str:
    """` [0.040, 0.200]`, or nothing."""
    return f" [{s.low:.3f}, {s.high:.3f}]" if s.low is not None else ""


def shown(score: float | None) -> str:
    """A score for people."""
    return "withheld" if score is None else f"{score:.3f}"


def log_summary(parent: RunLog, root: Path, params: Params) -> None:
    """On a pipeline's run: what it is compared by, and its curves of training at their steps."""
    parent.metrics(headlines(root, params))
    for step, values in curve_points(root, params):
        parent.metrics(values, step)


def headlines(root: Path, params: Params) -> dict[str, float]:
    """About twelve numbers a pipeline is compared by; all others are on the runs of its stages."""
    report = {k: float(v) for k, v in read_object(root / "report/summary.json").items() if _finite(v)}
    found = {k: report[k] for k in HEADLINES if k in report}
    for policy in params.eval.policies:
        for s in _given(root / "results/evaluate" / f"{policy}-{params.eval.first}")[:1]:
            found[f"eval/{params.eval.first}_{policy}"] = float(s["score"])
    for policy in params.bench.policies:
        for benchmark in params.bench.benchmarks:
            for s in _given(root / "results/bench" / f"{policy}-{benchmark}")[:1]:
                found[f"bench/{benchmark}_{policy}"] = float(s["score"])
    return dict(list(found.items())[:MOST_HEADLINES])


def verdict(root: Path) -> str:
    """The gain in a sentence, for the end of a pipeline; empty where there is none."""
    report = read_object(root / "report/summary.json")
    values = [report.get(f"eval/gain{end}") for end in ("", "_low", "_high")]
    gain, low, high = (float(v) if v is not None and _finite(v) else None for v in values)
    if gain is None:
        return ""
    if low is None or high is None:
        return f"gain {gain:+.3f}, without an interval"
    noise = "within noise" if low <= 0 <= high else "outside noise"
    return f"gain {gain:+.3f} [{low:+.3f}, {high:+.3f}]: {noise}"


def curve_points(root: Path, params: Params) -> list[tuple[int, dict[str, float]]]:
    """(step, scores) of every point of `dynamics`, ascending."""
    found, d = [], params.dynamics
    for step in sorted(d.steps):
        for run in d.runs:
            for benchmark in d.benchmarks:
                scores = _given(root / "results/dynamics" / f"{run}-{step}-{benchmark}")
                values = {f"dynamics/{run}.{curve_name(s)}": float(s["score"]) for s in scores}
                found += [(step, values)] if values else []
    return found


def curve_name(score: ScoreRecord | Mapping[str, JSON]) -> str:
    """Of one score in a curve: `desk.success`, `tau2.macro.reward.derived`."""
    s = score if isinstance(score, Mapping) else asdict(score)
    if s["harness"] == OURS:
        return f"{s['benchmark']}.{s['metric']}"
    return f"{s['benchmark']}.{s['subset']}.{s['metric']}.{s['source']}"


def _given(folder: Path) -> list[dict[str, JSON]]:
    """The score records of a folder that are not withheld."""
    scores = read_object(folder / "scores.json").get("scores", [])
    return [s for s in scores if s.get("score") is not None]


def read_object(path: Path) -> dict[str, JSON]:
    """A JSON object that may not be made yet."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _finite(value: JSON) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
