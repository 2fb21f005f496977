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
from pathlib import Path
from typing import NamedTuple

from envace.bench.bfcl import failures
from envace.bench.bfcl.tasks import AGENTIC, HAVE_TURNS, MEMORY, scenario
from envace.bench.harness.answers import LEFT_IN_TEXT, left_call, read_rows
from envace.errors import DataError
from envace.types import JSON, SampleRecord, SampleStatus

LONGEST_ERROR = 200
TEXT_FOR_A_CALL = ("ast_decoder:decoder_failed", "ast_decoder:decoder_wrong_output_format")
AGENT, INFRA, SCORED = SampleStatus.AGENT_FAILURE, SampleStatus.INFRA_FAILURE, SampleStatus.SCORED
BfclRow = dict[str, JSON]


class BfclFiles(NamedTuple):
    """What the files of one job hold."""

    rows: dict[str, BfclRow]  # id -> answered row, prerequisite conversations included
    wrong: dict[str, BfclRow]  # id -> BFCL's reasons
    unscored: str  # why the score file cannot be used; "" when it can
    cut: Counter[str]  # id -> generations that ran into the token limit
    lost_memories: dict[
        str, str
    ]  # scenario -> why its memory was not filled, where the infrastructure failed


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
    lost: dict[str, str] = {}
    for kind in (category, f"{category}_prereq"):
        for file in sorted((folder / "root" / "result").rglob(f"BFCL_v4_{kind}_result.json")):
            for row in read_rows(file):
                entry = row.get("id")
                if "result" not in row or not isinstance(entry, str) or entry in rows:
                    raise DataError(
                        f"bfcl: the results of {category} hold {str(entry)[:60]!r} twice or broken; "
                        f"remove {folder.name} and run it again"
                    )
                rows[entry] = row
                if category in MEMORY and "_prereq_" in entry and failures.failed(row):
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
        said = row["result"].removeprefix(failures.PREFIX).strip()
        return AGENT if who == "agent" else INFRA, None, "inference_error", f"{cause}: {said}"
    if found.lost_memories and (lost := found.lost_memories.get(scenario(row["id"]))):
        return INFRA, None, "prerequisite_failed", lost
    if found.unscored:
        return INFRA, None, "not_scored", found.unscored
    kind, message = "correct", ""  # what BFCL does not list
    if wrong := found.wrong.get(row["id"]):
        error = wrong.get("error")
        told = error if isinstance(error, dict) else wrong | {"error_message": error}
        kind, said = str(told.get("error_type", "wrong")), told.get("error_message", "")
        message = str(said[0] if isinstance(said, list) and said else said)
    if broken := fault(row["result"], category, kind):
        return AGENT, None, kind, broken
    error = f"no call could be read: {message}" if kind in TEXT_FOR_A_CALL else ""
    return SCORED, float(kind == "correct"), kind, error


def fault(result: JSON, category: str, kind: str) -> str:
    """How an agent broke the rules, read from what it said, or "". `kind` is BFCL's error type, or "correct".

    A call that could not be read is a fault also where nothing was to be called: it never passes for
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
    """Latencies and tokens of every step, and what BFCL and we count."""
    names = ("latency", "input_token_count", "output_token_count")
    latency, read, written = (_numbers(row.get(name)) for name in names)
    cost = {"steps": float(len(latency)), "seconds": sum(latency), "cut": float(found.cut[row["id"]])}
    cost |= {"input_tokens": sum(read), "output_tokens": sum(written), "tokens": sum(read) + sum(written)}
    if not found.unscored:
        cost["upstream"] = float(row["id"] not in found.wrong)
    return cost if reward is None else cost | {"reward": reward}


def _numbers(value: JSON) -> list[float]:
    """Of a list of any depth."""
    if isinstance(value, list):
        return [n for v in value for n in _numbers(v)]
    return [float(value)] if isinstance(value, int | float) else []
