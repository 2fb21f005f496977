"""Result files of tau² -> one record per dialogue, nothing dropped.

Flows in: a job's folder: results.json of upstream, or the fork's flat file of the same shape with its
errors.jsonl.
Flows out: `SampleRecord`s with what tau² itself counted beside the strict reading.
Invariant: a dialogue that tau² leaves out of its average (`infrastructure_error`) has a record here. Only
what is known to be the agent's is an agent failure: a call that cannot be read, an empty message, a
conversation longer than its context; every other exception, and every unknown word, is the infrastructure's
and stops the headline. A grader that raises because what it looks for is not in the database says that the
agent did not put it there. Where a run was resumed, the agent's first outcome counts and a failure of the
infrastructure gives way to what came later.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from envace.bench.harness.answers import LEFT_IN_TEXT, OVERFLOW, left_call, read_rows
from envace.io.redact import Redactor
from envace.types import JSON, SampleRecord, SampleStatus

AGENT, INFRA, SCORED = SampleStatus.AGENT_FAILURE, SampleStatus.INFRA_FAILURE, SampleStatus.SCORED
GRADED = {"user_stop", "agent_stop"}
AGENT_ENDINGS = {  # tau² counts these 0
    "too_many_errors": "too many failed calls",
    "agent_error": "broke the communication protocol",
    "context_window_exceeded": "context overflow",
    "judge_stop": "stuck in a loop",
}
INFRA_ENDINGS = {"user_error", "timeout", "unexpected_error"}  # tau² counts these 0
BUDGET = "max_steps"  # scored as it stands: 0

# A traceback says in its functions and source lines who was asked; where the files lay says nothing.
FRAME = re.compile(r'^\s*File "[^"\n]*", line \d+, in (\S+)(?:\n(?!\s*File ")\s*(\S.*))?', re.M)
PARTICIPANT = re.compile(r"\b(?:self\.)?(agent|user)\.\w+\(|\b(agent|user)_msg\.validate\b")
REPLY = re.compile(r"\b(assistant|user)_message = .*generate")
READS_CALL = re.compile(r"\.function\.arguments\b|\bToolCall\(")
EMPTY = re.compile(r"must have (either )?content or tool.?calls", re.I)
Dialogue = dict[str, JSON]


class DialogueCause(NamedTuple):
    """`DialogueCause("agent", "malformed call", "JSONDecodeError: Expecting value: ...")`."""

    role: str  # agent | user | judge | harness
    kind: str  # malformed call | empty message | context overflow | asserted state is absent | "" (other)
    text: str

    @property
    def verdict(self) -> tuple[SampleStatus, str]:
        """Status and named cause."""
        return (
            AGENT if self.role == "agent" and self.kind else INFRA,
            f"{self.role}: {self.kind or self.text}",
        )


ErrorQueues = dict[tuple[str, int], deque[DialogueCause]]
"""(task, seed) -> causes in the order they happened."""


def cause_of(error_type: str, error: str, traceback: str) -> DialogueCause:
    """What an exception that ended a dialogue says."""
    frames: list[tuple[str, str]] = FRAME.findall(traceback)
    named = {name for frame in frames for name in re.findall(r"\w+", " ".join(frame))}
    role, kind = _role(frames, named), ""
    if error_type == "ValueError" and "run_env_assertion" in named:
        kind = "asserted state is absent"
    elif error_type in ("JSONDecodeError", "ValidationError", "TypeError"):
        kind = "malformed call" if any(READS_CALL.search(source) for _, source in frames) else ""
    elif error_type in ("ValueError", "AssertionError"):
        kind = "empty message" if EMPTY.search(error) else ""
    elif (
        error_type == "ContextWindowExceededError"
        or error_type == "BadRequestError"
        and OVERFLOW.search(error)
    ):
        kind = "context overflow"
    first = error.strip().splitlines()[0] if error.strip() else ""
    return DialogueCause(role, kind, f"{error_type}: {first}"[:240])


def _role(frames: Sequence[tuple[str, str]], named: set[str]) -> str:
    """Who was being asked: a grader, or the outermost participant."""
    if "run_env_assertion" in named:
        return "agent"
    if "evaluate_nl_assertions" in named:
        return "judge"
    if "evaluate_simulation" in named:
        return "harness"
    for _, source in frames:
        if found := PARTICIPANT.search(source):
            return found[1] or found[2]
    replies = [found[1] for _, source in frames if (found := REPLY.search(source))]
    return {"assistant": "agent"}.get(replies[0], "user") if replies else "harness"


def parse_folder(folder: Path, subset: str, planned: Sequence[tuple[str, int]] = ()) -> list[SampleRecord]:
    """Every dialogue of one job. An unreadable file is a named failure of all it owed, an absent one says
    nothing.
    """
    before = sorted(folder.glob("before-*.json"), key=lambda f: int(f.stem.split("-")[1]))
    errors: ErrorQueues = defaultdict(deque)
    for row in read_rows(folder / "errors.jsonl"):
        cause = cause_of(row["error_type"], row["error"], row["error_traceback"])
        errors[str(row["task_id"]), int(row["seed"] or 0)].append(cause)
    records: dict[tuple[str, int], SampleRecord] = {}
    for file in (*before, folder / "results.json"):
        for record in _file_records(file, subset, errors, planned) if file.exists() else ():
            earlier = records.get((record.task, record.trial))
            if earlier is None or earlier.status is INFRA:
                records[record.task, record.trial] = record
    return list(records.values())


def _file_records(
    file: Path, subset: str, errors: ErrorQueues, planned: Sequence[tuple[str, int]]
) -> Iterator[SampleRecord]:
    try:
        data = json.loads(file.read_text())
        rows, tasks = data["simulations"], {str(t["id"]): t for t in data["tasks"]}
    except (ValueError, KeyError, TypeError) as e:
        why = f"{file.name} is not readable: {e}"[:240]
        yield from (SampleRecord(task=t, trial=k, seed=0, status=INFRA, error=why) for t, k in planned)
        return
    for row in rows:
        yield _record(row, subset, tasks.get(str(row["task_id"]), {}), errors)


def _record(row: Dialogue, subset: str, task: dict[str, JSON], errors: ErrorQueues) -> SampleRecord:
    """One dialogue as tau² wrote it down."""
    stop, metrics = str(row.get("termination_reason")), _metrics(row)
    reward = (row.get("reward_info") or {}).get("reward")
    graded, dropped = isinstance(reward, int | float), stop == "infrastructure_error"
    if dropped or row.get("skipped"):
        info, cause = row.get("info") or {}, None
        if dropped and "error_type" in info:
            said = (str(info.get("error", "")), str(info.get("error_traceback", "")))
            cause = cause_of(info["error_type"], *said)
        elif not dropped and (queue := errors.get((str(row["task_id"]), int(row.get("seed") or 0)))):
            cause = queue.popleft()
        status, error = cause.verdict if cause else (INFRA, "failed, and the harness recorded no cause")
    else:
        status, error = _verdict(row, stop, graded, bool(metrics["malformed"]), task)
    if not dropped and graded:
        metrics["upstream"] = float(reward)
    if status is SCORED:
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
    row: Dialogue, stop: str, graded: bool, unread: bool, task: dict[str, JSON]
) -> tuple[SampleStatus, str]:
    """What a dialogue that tau² did not drop is worth."""
    if stop in AGENT_ENDINGS:
        return AGENT, AGENT_ENDINGS[stop]
    if stop in INFRA_ENDINGS:
        return INFRA, f"ended by {stop}"
    if stop not in GRADED and stop != BUDGET:
        return INFRA, f"unknown ending {stop!r}"
    if unread:  # also where doing nothing would have been right
        return AGENT, f"agent: malformed call ({LEFT_IN_TEXT})"
    if not graded:
        return INFRA, "ended without a reward"
    criteria = task.get("evaluation_criteria") or {}
    if stop in GRADED and "NL_ASSERTION" in (criteria.get("reward_basis") or []):
        done, asked = (len(of.get("nl_assertions") or []) for of in (row["reward_info"], criteria))
        if done < asked:  # tau² takes an assertion that the judge left out for met; here the judge has failed
            return INFRA, f"judge: graded {done} of {asked} assertions"
    return SCORED, ""


def _metrics(row: Dialogue) -> dict[str, float]:
    """`malformed` counts messages in which a call was left unread. tau² has them said to the customer."""
    said = [m for m in row.get("messages") or [] if m.get("role") == "assistant"]
    asked = [m for m in said if m.get("usage")]
    return {
        "steps": float(len(asked)),
        "calls": float(sum(len(m.get("tool_calls") or ()) for m in asked)),
        "malformed": float(sum(left_call(m.get("content")) for m in said if not m.get("tool_calls"))),
        "tokens": float(sum(m["usage"].get("completion_tokens") or 0 for m in asked)),
        "prompt_tokens": float(sum(m["usage"].get("prompt_tokens") or 0 for m in asked)),
        "seconds": float(row.get("duration") or 0.0),
    }
