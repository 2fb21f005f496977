"""BFCL's result and score files -> sample records.

Flows in: one job's folder. Flows out: a record for every planned entry that BFCL wrote down.
Invariant: BFCL lists only failures, so an entry is right because it was answered, its category was scored, the
counts agree, and it is not among them. What BFCL counts (`metrics["upstream"]`) stands beside what it should: an
answer that failed for infrastructure reasons is wrong to BFCL, and right where calling nothing is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envace.bench.bfcl import failures
from envace.bench.bfcl.categories import MEMORY
from envace.bench.bfcl.faults import fault
from envace.bench.bfcl.questions import scenario
from envace.errors import DataError
from envace.types import JSON, SampleRecord, SampleStatus

LONGEST_ERROR = 200
TEXT_FOR_A_CALL = ("ast_decoder:decoder_failed", "ast_decoder:decoder_wrong_output_format")


@dataclass(frozen=True, slots=True)
class Found:
    """What the files of one job hold."""

    rows: dict[str, dict[str, JSON]]  # id -> answered row, prerequisite conversations included
    wrong: dict[str, dict[str, JSON]]  # id -> BFCL's reasons
    unscored: str  # why the score file cannot be used; "" when it can
    cut: Counter[str]  # id -> generations that ran into the token limit


def read_job(folder: Path, category: str) -> Found:
    """Raises DataError for files that one run of BFCL cannot have written."""
    files = _files(folder, "result", f"{category}_result") + _files(
        folder, "result", f"{category}_prereq_result"
    )
    rows: dict[str, dict[str, JSON]] = {}
    for row in (r for file in files for r in _lines(file)):
        if "result" not in row or not isinstance(row.get("id"), str) or row["id"] in rows:
            raise DataError(
                f"bfcl: the results of {category} hold {str(row.get('id'))[:60]!r} twice or broken; remove {folder.name} "
                "and run it again"
            )
        rows[row["id"]] = row
    wrong, unscored = _wrong(folder, category, rows)
    cut = Counter(r["id"] for r in _lines(folder / "requests.jsonl") if r.get("finish") == "length")
    return Found(rows, wrong, unscored, cut)


def records(
    found: Found, category: str, ids: list[str], trial: int, seed: int, redact: Callable[[str], str]
) -> list[SampleRecord]:
    """One record an entry that was answered; the others become MISSING by the plan."""
    owed = set(ids)
    if strangers := [i for i in found.rows if i not in owed and "_prereq_" not in i]:
        raise DataError(f"bfcl: {strangers[0]} was not asked for; the folder of {category} holds another run")
    lost_memory = _lost_memories(found) if category in MEMORY else {}
    made = []
    for entry in ids:
        if (row := found.rows.get(entry)) is None:
            continue
        lost = lost_memory.get(scenario(entry), "") if lost_memory else ""
        status, reward, stop, error = _judge(found, row, category, lost)
        task, metrics = f"{category}/{entry}", _metrics(found, row, reward)
        made.append(
            SampleRecord(task=task, trial=trial, seed=seed, status=status, reward=reward, stop=stop,
                         error=redact(error)[:LONGEST_ERROR], metrics=metrics)
        )  # fmt: skip
    return made


Judged = tuple[SampleStatus, float | None, str, str]  # status, reward, BFCL's word, named cause


def _judge(found: Found, row: dict[str, JSON], category: str, lost: str) -> Judged:
    if failures.failed(row):
        who, cause = failures.cause(row["result"])
        status = SampleStatus.AGENT_FAILURE if who == "agent" else SampleStatus.INFRA_FAILURE
        said = row["result"].removeprefix(failures.PREFIX).strip()
        return status, None, "inference_error", f"{cause}: {said}"
    if lost:
        return SampleStatus.INFRA_FAILURE, None, "prerequisite_failed", lost
    if found.unscored:
        return SampleStatus.INFRA_FAILURE, None, "not_scored", found.unscored
    kind, message = _reason(found.wrong.get(row["id"]))
    if broken := fault(row["result"], category, kind):
        return SampleStatus.AGENT_FAILURE, None, kind, broken
    error = f"no call could be read: {message}" if kind in TEXT_FOR_A_CALL else ""
    return SampleStatus.SCORED, float(kind == "correct"), kind, error


def _reason(wrong: dict[str, JSON] | None) -> tuple[str, str]:
    """BFCL's error type and message; "correct" for what it does not list."""
    if wrong is None:
        return "correct", ""
    error = wrong.get("error")
    if isinstance(error, dict):
        return str(error.get("error_type", "wrong")), _first(error.get("error_message", ""))
    return str(wrong.get("error_type", "wrong")), _first(error)


def _first(said: JSON) -> str:
    return str(said[0] if isinstance(said, list) and said else said)


def _wrong(folder: Path, category: str, rows: dict[str, Any]) -> tuple[dict[str, dict[str, JSON]], str]:
    files = _files(folder, "score", f"{category}_score")
    if not files:
        return {}, f"BFCL scored nothing: {_driver(folder).get('evaluate', 'the process ended before')}"
    head, *listed = _lines(files[0]) or [{}]
    wrong = {str(w.get("id")): w for w in listed}
    scored = [i for i in rows if "_prereq_" not in i]
    agrees = head.get("total_count") == len(scored) and wrong.keys() <= set(scored)
    if not agrees or head.get("correct_count") != len(scored) - len(wrong):
        return {}, (
            f"the score file counts {head.get('correct_count')} of {head.get('total_count')} and lists {len(listed)} "
            f"failures, the result file holds {len(scored)} answers"
        )
    return wrong, ""


def _lost_memories(found: Found) -> dict[str, str]:
    """Scenario -> why its memory was not filled, for conversations that the infrastructure failed."""
    lost = {}
    for entry, row in found.rows.items():
        if "_prereq_" in entry and failures.failed(row):
            who, cause = failures.cause(row["result"])
            if who == "infra":
                lost[scenario(entry)] = f"prerequisite conversation {entry}: {cause}"
    return lost


def _metrics(found: Found, row: dict[str, JSON], reward: float | None) -> dict[str, float]:
    metrics = {
        "steps": float(len(_numbers(row.get("latency")))),
        "seconds": sum(_numbers(row.get("latency"))),
    }
    metrics["input_tokens"] = sum(_numbers(row.get("input_token_count")))
    metrics["output_tokens"] = sum(_numbers(row.get("output_token_count")))
    metrics["tokens"] = metrics["input_tokens"] + metrics["output_tokens"]
    metrics["cut"] = float(found.cut[row["id"]])
    if not found.unscored:
        metrics["upstream"] = float(row["id"] not in found.wrong)
    if reward is not None:
        metrics["reward"] = reward
    return metrics


def _numbers(value: JSON) -> list[float]:
    if isinstance(value, list):
        return [n for v in value for n in _numbers(v)]
    return [float(value)] if isinstance(value, (int, float)) else []


def _driver(folder: Path) -> dict[str, JSON]:
    try:
        return json.loads((folder / "driver.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _files(folder: Path, kind: str, name: str) -> list[Path]:
    return sorted((folder / "root" / kind).rglob(f"BFCL_v4_{name}.json"))


def _lines(path: Path) -> list[dict[str, JSON]]:
    """Rows of a JSON Lines file; a row that was cut off when the process was killed is one that is missing."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
