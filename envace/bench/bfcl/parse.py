"""BFCL's result and score files -> sample records.

Invariant: BFCL lists only failures, so an entry is right because it was answered, its category was scored,
the counts agree, and it is not among them. What BFCL counts (`metrics["upstream"]`) stands beside what it
should: an answer that failed for infrastructure reasons is wrong to BFCL, and right where calling nothing is.
BFCL also takes unreadable calls and empty messages for declining to call; here they are the agent's failures.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envace.bench.bfcl import failures
from envace.bench.bfcl.categories import AGENTIC, HAVE_TURNS, MEMORY
from envace.bench.bfcl.questions import scenario
from envace.bench.harness.answers import LEFT_IN_TEXT, left_call, read_rows
from envace.errors import DataError
from envace.types import JSON, SampleRecord, SampleStatus

LONGEST_ERROR = 200
TEXT_FOR_A_CALL = ("ast_decoder:decoder_failed", "ast_decoder:decoder_wrong_output_format")
BfclRow = dict[str, JSON]


@dataclass(frozen=True, slots=True)
class BfclFiles:
    """What the files of one job hold."""

    rows: dict[str, BfclRow]
    """Id -> answered row, prerequisite conversations included."""
    wrong: dict[str, BfclRow]
    """Id -> BFCL's reasons."""
    unscored: str
    """Why the score file cannot be used; "" when it can."""
    cut: Counter[str]
    """Id -> generations that ran into the token limit."""
    lost_memories: dict[str, str]
    """Scenario -> why its memory was not filled, for conversations that the infrastructure failed."""


def sample_records(
    folder: Path, planned: Sequence[tuple[str, int]], seed: int, redact: Callable[[str], str]
) -> list[SampleRecord]:
    """One record for each planned entry that was answered; the others become MISSING by the plan.

    Raises DataError for files that one run of BFCL cannot have written.
    """
    category, trial = planned[0][0].split("/", 1)[0], planned[0][1]
    ids = [task.split("/", 1)[1] for task, _ in planned]
    found = read_job(folder, category)
    if strangers := [i for i in found.rows if i not in ids and "_prereq_" not in i]:
        raise DataError(f"bfcl: {strangers[0]} was not asked for; the folder of {category} holds another run")
    made = []
    for row in (found.rows[i] for i in ids if i in found.rows):
        status, reward, stop, error = _judge(found, row, category)
        made.append(
            SampleRecord(
                task=f"{category}/{row['id']}",
                trial=trial,
                seed=seed,
                status=status,
                reward=reward,
                stop=stop,
                error=redact(error)[:LONGEST_ERROR],
                metrics=_metrics(found, row, reward),
            )
        )
    return made


def read_job(folder: Path, category: str) -> BfclFiles:
    """Raises DataError for an entry that is there twice, or without its answer."""
    rows: dict[str, BfclRow] = {}
    for kind in (category, f"{category}_prereq"):
        for file in sorted((folder / "root" / "result").rglob(f"BFCL_v4_{kind}_result.json")):
            for row in read_rows(file):
                if "result" not in row or not isinstance(row.get("id"), str) or row["id"] in rows:
                    raise DataError(
                        f"bfcl: the results of {category} hold {str(row.get('id'))[:60]!r} twice or broken; "
                        f"remove {folder.name} and run it again"
                    )
                rows[row["id"]] = row
    lost = {}
    for entry, row in rows.items() if category in MEMORY else ():
        if "_prereq_" in entry and failures.failed(row):
            who, cause = failures.cause(row["result"])
            if who == "infra":
                lost[scenario(entry)] = f"prerequisite conversation {entry}: {cause}"
    cut = Counter(r["id"] for r in read_rows(folder / "requests.jsonl") if r.get("finish") == "length")
    wrong, unscored = _wrong(folder, category, [i for i in rows if "_prereq_" not in i])
    return BfclFiles(rows, wrong, unscored, cut, lost)


def _wrong(folder: Path, category: str, answered: Sequence[str]) -> tuple[dict[str, BfclRow], str]:
    """Id -> what BFCL lists as wrong, or why its list cannot be used."""
    files = sorted((folder / "root" / "score").rglob(f"BFCL_v4_{category}_score.json"))
    if not files:
        try:
            said = json.loads((folder / "driver.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = {}
        return {}, f"BFCL scored nothing: {said.get('evaluate', 'the process ended before')}"
    head, *listed = read_rows(files[0]) or [{}]
    wrong = {str(w.get("id")): w for w in listed}
    counts = (head.get("total_count"), head.get("correct_count"))
    if counts != (len(answered), len(answered) - len(wrong)) or not wrong.keys() <= set(answered):
        return {}, (
            f"the score file counts {counts[1]} of {counts[0]} and lists {len(listed)} failures, "
            f"the result file holds {len(answered)} answers"
        )
    return wrong, ""


def _judge(found: BfclFiles, row: BfclRow, category: str) -> tuple[SampleStatus, float | None, str, str]:
    """(status, reward, BFCL's word, named cause)."""
    if failures.failed(row):
        who, cause = failures.cause(row["result"])
        status = SampleStatus.AGENT_FAILURE if who == "agent" else SampleStatus.INFRA_FAILURE
        said = row["result"].removeprefix(failures.PREFIX).strip()
        return status, None, "inference_error", f"{cause}: {said}"
    if found.lost_memories and (lost := found.lost_memories.get(scenario(row["id"]))):
        return SampleStatus.INFRA_FAILURE, None, "prerequisite_failed", lost
    if found.unscored:
        return SampleStatus.INFRA_FAILURE, None, "not_scored", found.unscored
    kind, message = _reason(found.wrong.get(row["id"]))
    if broken := fault(row["result"], category, kind):
        return SampleStatus.AGENT_FAILURE, None, kind, broken
    error = f"no call could be read: {message}" if kind in TEXT_FOR_A_CALL else ""
    return SampleStatus.SCORED, float(kind == "correct"), kind, error


def _reason(wrong: BfclRow | None) -> tuple[str, str]:
    """BFCL's error type and message; "correct" for what it does not list."""
    if wrong is None:
        return "correct", ""
    error = wrong.get("error")
    kind, said = wrong.get("error_type", "wrong"), error
    if isinstance(error, dict):
        kind, said = error.get("error_type", "wrong"), error.get("error_message", "")
    return str(kind), str(said[0] if isinstance(said, list) and said else said)


def fault(result: JSON, category: str, kind: str) -> str:
    """How an agent broke the rules, read from what it said, or "". `kind` is BFCL's error type, or "correct".

    A call that could not be read is a fault also where nothing was to be called, so that it never passes for
    declining.
    """
    if kind == "multi_turn:force_terminated":
        return "more than 20 steps in one turn"
    if kind == "agentic:no_last_message":
        return "no final message"
    if category not in HAVE_TURNS:
        return _broken(result, empty_too=True)
    turns = result if isinstance(result, list) else []
    steps = [step for turn in turns if isinstance(turn, list) for step in turn]
    if category in AGENTIC:  # only the last message is judged, and words inside a broken call would count
        return _broken(steps[-1] if steps else "", empty_too=True)
    unanswered = kind == "multi_turn:empty_turn_model_response"  # elsewhere an empty message ends a turn
    return next((b for step in steps if (b := _broken(step, empty_too=unanswered))), "")


def _broken(said: JSON, empty_too: bool) -> str:
    """A fault of one message: calls are [{name: JSON text}], anything else is text."""
    if not said:
        return "empty message" if empty_too else ""
    if isinstance(said, str):
        return f"malformed call: {LEFT_IN_TEXT}" if left_call(said) else ""
    for call in said if isinstance(said, list) else [said]:
        for name, arguments in call.items() if isinstance(call, dict) else [("?", call)]:
            try:
                read = json.loads(arguments) if isinstance(arguments, str) else arguments
            except ValueError:
                read = None
            if not isinstance(read, dict):
                return f"malformed call: the arguments of {name[:40]} are no JSON object"
    return ""


def _metrics(found: BfclFiles, row: BfclRow, reward: float | None) -> dict[str, float]:
    latency, read, written = (
        _numbers(row.get(k)) for k in ("latency", "input_token_count", "output_token_count")
    )
    metrics = {
        "steps": float(len(latency)),
        "seconds": sum(latency),
        "input_tokens": sum(read),
        "output_tokens": sum(written),
        "tokens": sum(read) + sum(written),
        "cut": float(found.cut[row["id"]]),
    }
    if not found.unscored:
        metrics["upstream"] = float(row["id"] not in found.wrong)
    return metrics if reward is None else metrics | {"reward": reward}


def _numbers(value: JSON) -> list[float]:
    """Of a list of any depth."""
    if isinstance(value, list):
        return [n for v in value for n in _numbers(v)]
    return [float(value)] if isinstance(value, (int, float)) else []
