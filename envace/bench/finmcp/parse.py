"""FinMCP-Bench's played conversations -> sample records.

Flows in: `samples.jsonl` and the rows. Flows out: one record a line that holds a conversation.
Invariant: names are compared with the gold conversation here, not in the runner; a conversation without any call is
scored like any other; one that broke off for the agent's fault misses all its gold calls, for another's has no score.
A call left in the text unread is the agent's fault; upstream takes the text for an answer, and `upstream_*` count so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envace.bench.finmcp.metrics import COUNTS, counts, nothing
from envace.bench.finmcp.play import UNREAD
from envace.bench.finmcp.rows import Row
from envace.bench.finmcp.run import lines
from envace.bench.harness.answers import LEFT_IN_TEXT
from envace.bench.harness.planning import seed_of
from envace.bench.harness.spec import EvalRequest, RawRun
from envace.io.redact import Redactor
from envace.types import SampleRecord, SampleStatus

NAMED = 200  # characters of an error that a record quotes


def samples_of(run: RawRun, request: EvalRequest, rows: Mapping[str, Row]) -> Iterator[SampleRecord]:
    """One record for each planned conversation that was played; its last line counts."""
    names = [request.roles.agent.key_env, str(request.options.get("mcp_key_env") or "")]
    clean = Redactor([{"key_env": n} for n in names])
    played = {line["task"]: line for line in lines(run.folder / "samples.jsonl")}
    for task, trial in run.job.planned:
        if task in played:
            fields = _fields(played[task], rows[task])
            fields["error"] = clean.text(fields["error"])[:NAMED]
            yield SampleRecord(task=task, trial=trial, seed=seed_of(request.seed, trial), **fields)


def _fields(line: dict[str, Any], row: Row) -> dict[str, Any]:
    status = SampleStatus(line["status"])
    stop = "call_budget" if "call_budget" in line["stops"] else (line["stops"] or [""])[-1]
    fields = {"status": status, "stop": stop, "error": line["error"]}
    if status is SampleStatus.INFRA_FAILURE:
        return fields
    played, unread = counts(row.gold, line["groups"]), line["stops"].count(UNREAD)
    finished = status is SampleStatus.SCORED  # the published scorer leaves rows with an error out
    if finished and unread:  # and takes the text for an answer
        fields |= {"status": SampleStatus.AGENT_FAILURE, "error": f"agent: {UNREAD} ({LEFT_IN_TEXT})"}
    numbers = played if finished and not unread else nothing(row.gold)
    metrics = (
        numbers
        | {"malformed": float(unread)}
        | {
            "steps": float(line["replies"]),
            "calls": float(sum(map(len, line["groups"]))),
            "tokens": float(line["tokens"]),
            "seconds": float(line["seconds"]),
        }
    )
    if finished:
        metrics["upstream"] = played["f1"]
    if finished and unread:
        metrics |= {f"upstream_{c}": played[c] for c in COUNTS}
    elif finished:
        metrics["reward"] = fields["reward"] = numbers["f1"]
    return fields | {"metrics": metrics}
