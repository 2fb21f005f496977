"""What a pipeline's own MLflow run says: the numbers it is compared by, and its curves of training.

Flows in: result files of the current parameters, cached or new. Flows out: metrics of the parent run.
Invariant: read only; a file that is not there yet, or a score that was withheld, is absent. Names have one
slash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from envace.config import Params
from envace.track.run_log import RunLog
from envace.types import JSON, ScoreRecord

OURS = "envace"  # the harness of benchmarks that are played in this process


def log_summary(parent: RunLog, root: Path, params: Params) -> None:
    """On a pipeline's run: what it is compared by, and its curves of training at their steps."""
    parent.metrics(summary_metrics(root, params))
    for step, values in curve_points(root, params):
        parent.metrics(values, step)


def summary_metrics(root: Path, params: Params) -> dict[str, float]:
    """The numbers a pipeline is compared by, from the files of the current parameters, cached or new."""
    found: dict[str, float] = {}
    for policy in params.eval.policies:
        for benchmark in params.eval.benchmarks:
            found |= _scores(root / "results/evaluate" / f"{policy}-{benchmark}", benchmark, policy)
    for point in params.tts.points:
        found |= _scores(root / "results/tts" / point, "tts", point)
    for policy in params.fidelity.policies:
        found |= _scores(root / "results/fidelity" / policy, "fidelity", policy)
    for policy in params.bench.policies:
        for upstream in params.bench.benchmarks:
            for s in _given(root / "results/bench" / f"{policy}-{upstream}"):
                name = f"{upstream}.{s['subset']}.{s['metric']}.{s['source']}"
                found[f"bench/{policy}.{name}"] = float(s["score"])
    for name in params.train.runs:
        found |= _training(root / "runs/train" / name, name)
    report = _read(root / "report/summary.json")
    return {**_numbers(report), **found}


def _scores(folder: Path, section: str, name: str) -> dict[str, float]:
    scores = _read(folder / "scores.json").get("scores", {})
    if isinstance(scores, dict):
        return {f"{section}/{name}.{k}": v for k, v in _numbers(scores).items()}
    return {f"{section}/{name}.{_metric(s)}": float(s["score"]) for s in _given(folder)}


def _given(folder: Path) -> list[dict[str, JSON]]:
    """The score records of a folder that are not withheld."""
    scores = _read(folder / "scores.json").get("scores", [])
    return [s for s in scores if s.get("score") is not None]


def curve_points(root: Path, params: Params) -> list[tuple[int, dict[str, float]]]:
    """(step, scores) of every point of `dynamics`, ascending."""
    found, d = [], params.dynamics
    for step in sorted(d.steps):
        for run in d.runs:
            for benchmark in d.benchmarks:
                scores = _given(root / "results/dynamics" / f"{run}-{step}-{benchmark}")
                values = {f"dynamics/{run}.{curve_name(s)}": float(s["score"]) for s in scores}
                found.append((step, values))
    return [(step, values) for step, values in found if values]


def curve_name(score: ScoreRecord | Mapping[str, JSON]) -> str:
    """Of one score in a curve: `desk.success`, `tau2.macro.reward.derived`."""
    s = score if isinstance(score, Mapping) else asdict(score)
    if s["harness"] == OURS:
        return f"{s['benchmark']}.{s['metric']}"
    return f"{s['benchmark']}.{s['subset']}.{s['metric']}.{s['source']}"


def _metric(score: Mapping[str, JSON]) -> str:
    subset = score.get("subset") or ""
    return score["metric"] if subset in ("", "all", "held", "overall") else f"{subset}.{score['metric']}"


def _training(folder: Path, name: str) -> dict[str, float]:
    info = _read(folder / "train.json")
    return {
        f"train/{name}.{k}": v
        for k, v in _numbers(info).items()
        if k in ("steps", "seconds", "reward_first", "reward_last")
    }


def _read(path: Path) -> dict[str, JSON]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # not made yet; a summary says what is there
    return data if isinstance(data, dict) else {}


def _numbers(data: Mapping[str, JSON]) -> dict[str, float]:
    return {
        k: float(v)
        for k, v in data.items()
        if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
    }
