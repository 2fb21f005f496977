"""Result files of tau² -> one record per dialogue, nothing dropped.

Flows in: a job's folder: results.json of upstream, or the fork's flat file of the same shape with its
errors.jsonl. Flows out: `SampleRecord`s with what tau² itself counted beside the strict reading.
Invariant: a dialogue that tau² leaves out of its average (`infrastructure_error`) has a record here. One in
which the agent wrote a call that could not be read is the agent's failure, also where doing nothing would
have been right. Where a run was resumed, the agent's first outcome counts and a failure of the infrastructure
gives way to what came later.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from envace.bench.harness.answers import LEFT_IN_TEXT, left_call, read_rows
from envace.bench.tau2 import failures
from envace.io.redact import Redactor
from envace.types import JSON, SampleRecord, SampleStatus

Dialogue = dict[str, JSON]
ErrorQueues = dict[tuple[str, int], deque[failures.DialogueCause]]
"""(task, seed) -> causes in the order they happened."""
Verdict = tuple[SampleStatus, str]


def parse_folder(folder: Path, subset: str, planned: Sequence[tuple[str, int]] = ()) -> list[SampleRecord]:
    """Every dialogue of one job. An unreadable file is a named failure of all it owed, an absent one says
    nothing.
    """
    before = sorted(folder.glob("before-*.json"), key=lambda f: int(f.stem.split("-")[1]))
    errors: ErrorQueues = defaultdict(deque)
    for row in read_rows(folder / "errors.jsonl"):
        cause = failures.cause_of(row["error_type"], row["error"], row["error_traceback"])
        errors[str(row["task_id"]), int(row["seed"] or 0)].append(cause)
    records: dict[tuple[str, int], SampleRecord] = {}
    for file in (*before, folder / "results.json"):
        for record in _file_records(file, subset, errors, planned):
            earlier = records.get((record.task, record.trial))
            if earlier is None or earlier.status is SampleStatus.INFRA_FAILURE:
                records[record.task, record.trial] = record
    return list(records.values())


def _file_records(
    file: Path, subset: str, errors: ErrorQueues, planned: Sequence[tuple[str, int]]
) -> Iterator[SampleRecord]:
    if not file.exists():
        return
    try:
        data = json.loads(file.read_text())
        rows, tasks = data["simulations"], {str(t["id"]): t for t in data["tasks"]}
    except (ValueError, KeyError, TypeError) as e:
        lost, why = SampleStatus.INFRA_FAILURE, f"{file.name} is not readable: {e}"[:240]
        yield from (SampleRecord(task=t, trial=k, seed=0, status=lost, error=why) for t, k in planned)
        return
    for row in rows:
        yield record_of(row, subset, tasks.get(str(row["task_id"]), {}), errors)


def record_of(row: Dialogue, subset: str, task: dict[str, JSON], errors: ErrorQueues) -> SampleRecord:
    """One dialogue as tau² wrote it down."""
    stop = str(row.get("termination_reason"))
    reward = (row.get("reward_info") or {}).get("reward")
    graded = isinstance(reward, (int, float))
    metrics = _metrics(row)
    if stop == "infrastructure_error":
        info = row.get("info") or {}
        said = (str(info.get("error", "")), str(info.get("error_traceback", "")))
        status, error = _of_cause(
            failures.cause_of(info["error_type"], *said) if "error_type" in info else None
        )
    elif row.get("skipped"):
        queue = errors.get((str(row["task_id"]), int(row.get("seed") or 0)))
        status, error = _of_cause(queue.popleft() if queue else None)
    else:
        status, error = _verdict(row, stop, graded, bool(metrics["malformed"]), task)
    if stop != "infrastructure_error" and graded:
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


def _of_cause(cause: failures.DialogueCause | None) -> Verdict:
    lost = SampleStatus.INFRA_FAILURE, "failed, and the harness recorded no cause"
    return cause.verdict if cause else lost


def _verdict(row: Dialogue, stop: str, graded: bool, unread: bool, task: dict[str, JSON]) -> Verdict:
    """What a dialogue that tau² did not drop is worth."""
    if stop in failures.AGENT_ENDINGS:
        return SampleStatus.AGENT_FAILURE, failures.AGENT_ENDINGS[stop]
    if stop in failures.INFRA_ENDINGS:
        return SampleStatus.INFRA_FAILURE, f"ended by {stop}"
    if stop not in failures.GRADED and stop != failures.BUDGET:
        return SampleStatus.INFRA_FAILURE, f"unknown ending {stop!r}"
    if unread:
        return SampleStatus.AGENT_FAILURE, f"agent: malformed call ({LEFT_IN_TEXT})"
    if not graded:
        return SampleStatus.INFRA_FAILURE, "ended without a reward"
    criteria = task.get("evaluation_criteria") or {}
    if stop in failures.GRADED and "NL_ASSERTION" in (criteria.get("reward_basis") or []):
        done = len(row["reward_info"].get("nl_assertions") or [])
        asked = len(criteria.get("nl_assertions") or [])
        if (
            done < asked
        ):  # tau² takes an assertion that the judge left out for met; here the judge has failed then
            return SampleStatus.INFRA_FAILURE, f"judge: graded {done} of {asked} assertions"
    return SampleStatus.SCORED, ""


def _metrics(row: Dialogue) -> dict[str, float]:
    """`malformed` counts messages in which a call was left unread. tau² has them said to the customer."""
    said = [m for m in row.get("messages") or [] if m.get("role") == "assistant"]
    asked = [m for m in said if m.get("usage")]
    used = [m["usage"] for m in asked]
    return {
        "steps": float(len(used)),
        "calls": float(sum(len(m.get("tool_calls") or ()) for m in asked)),
        "malformed": float(sum(left_call(m.get("content")) for m in said if not m.get("tool_calls"))),
        "tokens": float(sum(u.get("completion_tokens") or 0 for u in used)),
        "prompt_tokens": float(sum(u.get("prompt_tokens") or 0 for u in used)),
        "seconds": float(row.get("duration") or 0.0),
    }
