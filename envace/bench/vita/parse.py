"""VitaBench's files -> sample records.

Flows in: `results.json` (what upstream counts) and `attempts.jsonl` (why it dropped what it dropped). Flows out: one
record for every task that left a trace; a task without one is MISSING later.
Invariant: an agent's own failure scores 0 in the strict sense even where the harness gave it another go or left the
task out; a failure of a server, the user simulator or the judge is never a score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envace.bench.harness.answers import LEFT_IN_TEXT, left_call
from envace.bench.harness.planning import seed_of
from envace.bench.harness.spec import EvalRequest, RawRun
from envace.errors import DataError
from envace.io.redact import Redactor
from envace.types import SampleRecord, SampleStatus

AGENT_CAUSED = {"malformed_call", "empty_message", "context_overflow"}
ENDED_BY_AGENT = {"invalid_agent_message": "empty_message", "too_many_errors": "too_many_errors"}
RUBRIC = re.compile(r"\brubric_\d+\b")
NAMED = 200  # characters of an error that a record quotes


def samples_of(run: RawRun, request: EvalRequest) -> Iterator[SampleRecord]:
    """One record for each planned task of the job that was seen."""
    clean = Redactor([{"key_env": e.key_env} for e in _endpoints(request)])
    trials = sorted({trial for _, trial in run.job.planned})
    simulations = _simulations(run.folder / "results.json", trials)
    attempts = _attempts(run.folder / "attempts.jsonl")
    for task, trial in run.job.planned:
        own = task.partition("/")[2]
        found, tried = simulations.get((own, trial)), attempts.get(own, [])
        if found is None and not tried:
            continue
        fields = _scored(found, tried) if found is not None else _dropped(tried)
        fields["error"] = clean.text(fields.get("error", ""))[:NAMED]
        yield SampleRecord(task=task, trial=trial, seed=seed_of(request.seed, trial), **fields)


def _endpoints(request: EvalRequest) -> list[Any]:
    roles = request.roles
    return [e for e in (roles.agent, roles.user, roles.judge) if e is not None]


def _simulations(path: Path, trials: list[int]) -> dict[tuple[str, int], dict[str, Any]]:
    """(task, trial) -> its simulation. A file that cannot be read holds none: the harness was killed while writing."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for simulation in data.get("simulations", []):
        key = (
            str(simulation["task_id"]),
            trials[int(simulation.get("trial") or 0)],
        )  # counted from 0 a process
        if key in found:
            raise DataError(f"{path} holds task {key[0]} twice in one trial; remove its folder and run again")
        found[key] = simulation
    return found


def _attempts(path: Path) -> dict[str, list[dict[str, Any]]]:
    tried: dict[str, list[dict[str, Any]]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").split("\n"):  # no other line end
            try:
                attempt = json.loads(line)
            except ValueError:
                continue  # the last line of a killed process
            tried.setdefault(attempt["task"], []).append(attempt)
    return tried


def cause_of(attempt: dict[str, Any]) -> str:
    """The name of what ended an attempt: "agent: malformed_call", "judge: unreadable", "harness: ..."."""
    if attempt["problem"]:
        return f"{attempt['role']}: {attempt['problem']}"
    if attempt["role"] == "judge":
        return "judge: unreadable"
    return f"harness: {attempt.get('error', 'unknown')}"


def by_agent(attempt: dict[str, Any]) -> bool:
    return attempt["role"] == "agent" and attempt["problem"] in AGENT_CAUSED


def _failures(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [a for a in tried if not a["ok"]]


def _dropped(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """A task that upstream leaves out of its results."""
    failures = _failures(tried)
    if not failures:  # finished, and lost before it was written
        return {
            "status": SampleStatus.INFRA_FAILURE,
            "stop": "dropped",
            "error": "harness: result not written",
        }
    own = [a for a in failures if by_agent(a)]
    status = SampleStatus.AGENT_FAILURE if own else SampleStatus.INFRA_FAILURE
    chosen = (own or failures)[0]
    error = cause_of(chosen)
    detail = f" ({chosen['detail']})" if chosen["detail"] else ""
    metrics = {"attempts": float(len(tried))}
    return {"status": status, "stop": "dropped", "error": error + detail, "metrics": metrics}


def _scored(simulation: dict[str, Any], tried: list[dict[str, Any]]) -> dict[str, Any]:
    """A task that upstream counts."""
    info = simulation.get("reward_info")
    if not info:
        error = "harness: no reward in the results"
        return {"status": SampleStatus.INFRA_FAILURE, "stop": "unjudged", "error": error}
    reward, stop = float(info["reward"]), str(simulation["termination_reason"])
    metrics = _metrics(simulation, info) | {"upstream": reward, "attempts": float(max(len(tried), 1))}
    own = [a for a in _failures(tried) if by_agent(a)]
    if own or stop in ENDED_BY_AGENT:
        error = f"{cause_of(own[0])}, then tried again" if own else f"agent: {ENDED_BY_AGENT[stop]}"
        return {"status": SampleStatus.AGENT_FAILURE, "metrics": metrics, "stop": stop, "error": error}
    if metrics["malformed"]:
        error = f"agent: malformed_call ({LEFT_IN_TEXT})"
        return {"status": SampleStatus.AGENT_FAILURE, "metrics": metrics, "stop": stop, "error": error}
    unread = int(metrics["judge_unreadable"])
    if unread and reward < 1:
        error = f"judge: unreadable ({unread} of {len(info['window_evaluations'])} answers name no rubric)"
        return {"status": SampleStatus.INFRA_FAILURE, "metrics": metrics, "stop": stop, "error": error}
    if (cut := sum(a.get("judge_cut", 0) for a in tried if a["ok"])) and reward < 1:
        error = f"judge: cut short ({cut} answers ended at the judge's token limit; raise its max_tokens)"
        return {"status": SampleStatus.INFRA_FAILURE, "metrics": metrics, "stop": stop, "error": error}
    metrics["reward"] = reward
    return {"status": SampleStatus.SCORED, "reward": reward, "metrics": metrics, "stop": stop}


def _metrics(simulation: dict[str, Any], info: dict[str, Any]) -> dict[str, float]:
    rubrics = info.get("nl_rubrics") or []
    said = [m for m in simulation["messages"] if m["role"] == "assistant"][1:]  # the first greeting is fixed
    metrics = {
        "rubrics": sum(bool(r["met"]) for r in rubrics) / len(rubrics) if rubrics else float(info["reward"]),
        "steps": float(len(said)),
        "calls": float(sum(len(m.get("tool_calls") or []) for m in said)),
        "malformed": float(sum(left_call(m.get("content")) for m in said if not m.get("tool_calls"))),
        "judge_unreadable": float(sum(_unreadable(w) for w in info.get("window_evaluations") or [])),
        "seconds": float(simulation.get("duration") or 0.0),
    }
    usage = [m["usage"] for m in said if m.get("usage")]
    if usage and len(usage) == len(said):
        metrics["tokens"] = float(
            sum(u.get("prompt_tokens", 0) + u.get("completion_tokens", 0) for u in usage)
        )
    return metrics


def _unreadable(window: dict[str, Any]) -> bool:
    """Whether a judge's answer changed nothing because it names no rubric: upstream keeps the old states in silence."""
    return not RUBRIC.search(str(window.get("assistant_message_content") or ""))
