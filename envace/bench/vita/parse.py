"""VitaBench's files -> sample records.

Flows in: `results.json` (what upstream counts) and `attempts.jsonl` (why it dropped what it dropped). Flows
out: one record for every task that left a trace; a task without one is MISSING later.
Invariant: an agent's own failure scores 0 in the strict sense even where the harness gave it another go or
left the task out; a failure of a server, the user simulator or the judge is never a score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from envace.bench.harness.answers import LEFT_IN_TEXT, left_call, read_rows
from envace.bench.harness.planning import seed_of
from envace.bench.harness.spec import EvalRequest, RawRun
from envace.errors import DataError
from envace.io.redact import Redactor
from envace.types import JSON, SampleRecord, SampleStatus, to_json

AGENT_CAUSED = {"malformed_call", "empty_message", "context_overflow"}
ENDED_BY_AGENT = {"invalid_agent_message": "empty_message", "too_many_errors": "too_many_errors"}
RUBRIC = re.compile(r"\brubric_\d+\b")
NAMED = 200  # characters of an error that a record quotes
AGENT, INFRA, SCORED = SampleStatus.AGENT_FAILURE, SampleStatus.INFRA_FAILURE, SampleStatus.SCORED
Attempt = Simulation = dict[str, JSON]
Verdict = tuple[SampleStatus, str]
"""Status and named cause."""


def samples_of(run: RawRun, request: EvalRequest) -> Iterator[SampleRecord]:
    """One record for each planned task of the job that was seen."""
    clean = Redactor([to_json(endpoint) for endpoint in request.roles.filled().values()])
    trials = sorted({trial for _, trial in run.job.planned})
    simulations = _simulations(run.folder / "results.json", trials)
    attempts: dict[str, list[Attempt]] = {}
    for attempt in read_rows(run.folder / "attempts.jsonl"):
        attempts.setdefault(attempt["task"], []).append(attempt)
    for task, trial in run.job.planned:
        own = task.partition("/")[2]
        found, tried = simulations.get((own, trial)), attempts.get(own, [])
        if found is None and not tried:
            continue
        stop, metrics = "dropped", dict[str, float]()
        if found is None:
            status, error = _dropped(tried)
            metrics |= {} if all(a["ok"] for a in tried) else {"attempts": float(len(tried))}
        elif info := found.get("reward_info"):
            stop, reward = str(found["termination_reason"]), float(info["reward"])
            metrics = _metrics(found, info) | {"upstream": reward, "attempts": float(max(len(tried), 1))}
            status, error = _scored(info, stop, metrics, tried)
        else:
            stop, status, error = "unjudged", INFRA, "harness: no reward in the results"
        if status is SCORED:
            metrics["reward"] = metrics["upstream"]
        yield SampleRecord(
            task=task,
            trial=trial,
            seed=seed_of(request.seed, trial),
            status=status,
            reward=metrics.get("reward"),
            metrics=metrics,
            stop=stop,
            error=clean.text(error)[:NAMED],
        )


def _simulations(path: Path, trials: Sequence[int]) -> dict[tuple[str, int], Simulation]:
    """(task, trial) -> its simulation; none from a file that the harness was killed over."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found: dict[tuple[str, int], Simulation] = {}
    for simulation in data.get("simulations", []):
        # trials are counted from 0 in each process
        key = (str(simulation["task_id"]), trials[int(simulation.get("trial") or 0)])
        if key in found:
            raise DataError(f"{path} holds task {key[0]} twice in one trial; remove its folder and run again")
        found[key] = simulation
    return found


def _by_agent(tried: Sequence[Attempt]) -> list[Attempt]:
    """Attempts that failed because of the agent."""
    return [a for a in tried if not a["ok"] and a["role"] == "agent" and a["problem"] in AGENT_CAUSED]


def _dropped(tried: Sequence[Attempt]) -> Verdict:
    """A task that upstream leaves out of its results."""
    failures, own = [a for a in tried if not a["ok"]], _by_agent(tried)
    if not failures:  # finished, and lost before it was written
        return INFRA, "harness: result not written"
    first = (own or failures)[0]
    cause = f"{first['role']}: {first['problem']}"
    if not first["problem"]:
        judged = first["role"] == "judge"
        cause = "judge: unreadable" if judged else f"harness: {first.get('error', 'unknown')}"
    return AGENT if own else INFRA, cause + (f" ({first['detail']})" if first["detail"] else "")


def _scored(info: dict[str, JSON], stop: str, metrics: dict[str, float], tried: Sequence[Attempt]) -> Verdict:
    """A task that upstream counts."""
    if own := _by_agent(tried):
        return AGENT, f"agent: {own[0]['problem']}, then tried again"
    if stop in ENDED_BY_AGENT:
        return AGENT, f"agent: {ENDED_BY_AGENT[stop]}"
    if metrics["malformed"]:
        return AGENT, f"agent: malformed_call ({LEFT_IN_TEXT})"
    if metrics["upstream"] < 1:  # the judge's own failures may have cost the reward
        if unread := int(metrics["judge_unreadable"]):
            every = len(info["window_evaluations"])
            return INFRA, f"judge: unreadable ({unread} of {every} answers name no rubric)"
        if cut := sum(a.get("judge_cut", 0) for a in tried if a["ok"]):
            limit = "ended at the judge's token limit; raise its max_tokens"
            return INFRA, f"judge: cut short ({cut} answers {limit})"
    return SCORED, ""


def _metrics(simulation: Simulation, info: dict[str, JSON]) -> dict[str, float]:
    """`judge_unreadable`: answers that name no rubric; upstream keeps the old states then."""
    rubrics, windows = info.get("nl_rubrics") or [], info.get("window_evaluations") or []
    said = [m for m in simulation["messages"] if m["role"] == "assistant"][1:]  # the first greeting is fixed
    judged = [str(w.get("assistant_message_content") or "") for w in windows]
    metrics = {
        "rubrics": sum(bool(r["met"]) for r in rubrics) / len(rubrics) if rubrics else float(info["reward"]),
        "steps": float(len(said)),
        "calls": float(sum(len(m.get("tool_calls") or []) for m in said)),
        "malformed": float(sum(left_call(m.get("content")) for m in said if not m.get("tool_calls"))),
        "judge_unreadable": float(sum(not RUBRIC.search(text) for text in judged)),
        "seconds": float(simulation.get("duration") or 0.0),
    }
    usage = [m["usage"] for m in said if m.get("usage")]
    if usage and len(usage) == len(said):
        spent = sum(u.get("prompt_tokens", 0) + u.get("completion_tokens", 0) for u in usage)
        metrics["tokens"] = float(spent)
    return metrics
