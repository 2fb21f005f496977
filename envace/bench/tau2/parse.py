"""Result files of tau² -> one record a dialogue, nothing dropped.

Flows in: a job's folder: results.json of upstream, or the fork's flat file of the same shape with its
errors.jsonl. Flows out: `SampleRecord`s with what tau² itself counted beside the strict reading.
Invariant: a dialogue that tau² leaves out of its average (`infrastructure_error`) has a record here. One in which the
agent wrote a call that could not be read is the agent's failure, also where doing nothing would have been right. Where a run
was resumed, the agent's first outcome counts and a failure of the infrastructure gives way to what came later.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envace.bench.harness.answers import LEFT_IN_TEXT, left_call
from envace.bench.tau2.failures import AGENT_ENDINGS, BUDGET, GRADED, INFRA_ENDINGS, Cause, cause_of
from envace.io.redact import Redactor
from envace.types import SampleRecord, SampleStatus

Errors = dict[tuple[str, int], deque[Cause]]  # (task, seed) -> causes in the order they happened


def parse_folder(folder: Path, subset: str, planned: Sequence[tuple[str, int]] = ()) -> list[SampleRecord]:
    """Every dialogue of one job. An unreadable file is a named failure of all it owed, an absent one says nothing."""
    files = [
        *sorted(folder.glob("before-*.json"), key=lambda f: int(f.stem.split("-")[1])),
        folder / "results.json",
    ]
    errors = _read_errors(folder / "errors.jsonl")
    records: dict[tuple[str, int], SampleRecord] = {}
    for file in files:
        for record in _file_records(file, subset, errors, planned):
            key = (record.task, record.trial)
            earlier = records.get(key)
            if earlier is None or earlier.status is SampleStatus.INFRA_FAILURE:
                records[key] = record
    return list(records.values())


def _file_records(
    file: Path, subset: str, errors: Errors, planned: Sequence[tuple[str, int]]
) -> Iterator[SampleRecord]:
    if not file.exists():
        return
    try:
        data = json.loads(file.read_text())
        rows, tasks = data["simulations"], {str(t["id"]): t for t in data["tasks"]}
    except (ValueError, KeyError, TypeError) as e:
        lost = {
            "seed": 0,
            "status": SampleStatus.INFRA_FAILURE,
            "error": f"{file.name} is not readable: {e}"[:240],
        }
        yield from (SampleRecord(task=task, trial=trial, **lost) for task, trial in planned)
        return
    for row in rows:
        yield record_of(row, subset, tasks.get(str(row["task_id"]), {}), errors)


def record_of(row: dict[str, Any], subset: str, task: dict[str, Any], errors: Errors) -> SampleRecord:
    """One dialogue as tau² wrote it down."""
    stop = str(row.get("termination_reason"))
    reward = (row.get("reward_info") or {}).get("reward")
    status, error = _verdict(row, stop, reward, task, errors)
    metrics = _metrics(row)
    if stop != "infrastructure_error" and isinstance(reward, (int, float)):
        metrics["upstream"] = float(reward)
    if status is SampleStatus.SCORED:
        metrics["reward"] = float(reward)
    return SampleRecord(
        task=f"{subset}/{row['task_id']}",
        trial=int(row.get("trial") or 0),
        seed=int(row.get("seed") or 0),
        status=status,
        reward=metrics.get("reward"),
        metrics=metrics,
        stop=stop,
        error=Redactor().text(error),
        episode_id=str(row.get("id", "")),
    )


def _verdict(
    row: dict[str, Any], stop: str, reward: Any, task: dict[str, Any], errors: Errors
) -> tuple[SampleStatus, str]:
    if stop == "infrastructure_error":
        return _of_cause(_recorded_cause(row.get("info") or {}))
    if row.get("skipped"):
        queue = errors.get((str(row["task_id"]), int(row.get("seed") or 0)))
        return _of_cause(queue.popleft() if queue else None)
    if stop in AGENT_ENDINGS:
        return SampleStatus.AGENT_FAILURE, AGENT_ENDINGS[stop]
    if stop in INFRA_ENDINGS:
        return SampleStatus.INFRA_FAILURE, f"ended by {stop}"
    if stop not in GRADED and stop != BUDGET:
        return SampleStatus.INFRA_FAILURE, f"unknown ending {stop!r}"
    if _unread(row):
        return SampleStatus.AGENT_FAILURE, f"agent: malformed call ({LEFT_IN_TEXT})"
    if not isinstance(reward, (int, float)):
        return SampleStatus.INFRA_FAILURE, "ended without a reward"
    if short := _ungraded(row, task):
        return SampleStatus.INFRA_FAILURE, short
    return SampleStatus.SCORED, ""


def _unread(row: dict[str, Any]) -> int:
    """Messages of the agent in which a call was left in the text, unread. tau² has them said to the customer."""
    said = [m for m in row.get("messages") or [] if m.get("role") == "assistant" and not m.get("tool_calls")]
    return sum(left_call(m.get("content")) for m in said)


def _of_cause(cause: Cause | None) -> tuple[SampleStatus, str]:
    if cause is None:
        return SampleStatus.INFRA_FAILURE, "failed, and the harness recorded no cause"
    return cause.status, cause.named


def _recorded_cause(info: dict[str, Any]) -> Cause | None:
    if "error_type" not in info:
        return None
    return cause_of(info["error_type"], str(info.get("error", "")), str(info.get("error_traceback", "")))


def _ungraded(row: dict[str, Any], task: dict[str, Any]) -> str:
    """tau² takes an assertion that the judge left out for met; here the judge has failed then."""
    criteria = task.get("evaluation_criteria") or {}
    graded = (row["reward_info"] or {}).get("nl_assertions") or []
    asked = criteria.get("nl_assertions") or []
    if row.get("termination_reason") not in GRADED or "NL_ASSERTION" not in (
        criteria.get("reward_basis") or []
    ):
        return ""
    return f"judge: graded {len(graded)} of {len(asked)} assertions" if len(graded) < len(asked) else ""


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    said = [m for m in row.get("messages") or [] if m.get("role") == "assistant"]
    used = [m["usage"] for m in said if m.get("usage")]
    return {
        "steps": float(len(used)),
        "calls": float(sum(len(m.get("tool_calls") or ()) for m in said if m.get("usage"))),
        "malformed": float(_unread(row)),
        "tokens": float(sum(u.get("completion_tokens") or 0 for u in used)),
        "prompt_tokens": float(sum(u.get("prompt_tokens") or 0 for u in used)),
        "seconds": float(row.get("duration") or 0.0),
    }


def _read_errors(file: Path) -> Errors:
    found: Errors = defaultdict(deque)
    if file.exists():
        for line in file.read_text().splitlines():
            row = json.loads(line)
            cause = cause_of(row["error_type"], row["error"], row["error_traceback"])
            found[str(row["task_id"]), int(row["seed"] or 0)].append(cause)
    return found
