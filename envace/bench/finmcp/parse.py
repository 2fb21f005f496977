"""FinMCP-Bench's played conversations -> sample records.

Invariant: names are compared with the gold conversation here, not in the runner; a conversation without any
call is scored like any other; one that broke off for the agent's fault misses all its gold calls, for
another's has no score. A call left in the text unread is the agent's fault; upstream takes the text for an
answer, and `upstream_*` count so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envace.bench.finmcp.rows import UNREAD, FinMcpRow
from envace.bench.finmcp.scores import COUNTS, counts, nothing
from envace.bench.harness.answers import LEFT_IN_TEXT, read_rows
from envace.bench.harness.planning import seed_of
from envace.bench.harness.spec import EvalRequest, RawRun
from envace.io.redact import Redactor
from envace.types import JSON, SampleRecord, SampleStatus

NAMED = 200  # characters of an error that a record quotes


def samples_of(run: RawRun, request: EvalRequest, rows: Mapping[str, FinMcpRow]) -> Iterator[SampleRecord]:
    """One record for each planned conversation that was played; its last line counts."""
    names = [request.roles.agent.key_env, str(request.options.get("mcp_key_env") or "")]
    clean = Redactor([{"key_env": n} for n in names])
    played = {line["task"]: line for line in read_rows(run.folder / "samples.jsonl")}
    for task, trial in run.job.planned:
        if task in played:
            line = played[task]
            status, error, metrics = _judged(line, rows[task].gold)
            yield SampleRecord(
                task=task,
                trial=trial,
                seed=seed_of(request.seed, trial),
                status=status,
                reward=metrics.get("reward"),
                metrics=metrics,
                stop="call_budget" if "call_budget" in line["stops"] else (line["stops"] or [""])[-1],
                error=clean.text(error)[:NAMED],
            )


def _judged(line: dict[str, JSON], gold: list[list[str]]) -> tuple[SampleStatus, str, dict[str, float]]:
    """Status, named cause and numbers of a line."""
    status, error = SampleStatus(line["status"]), line["error"]
    if status is SampleStatus.INFRA_FAILURE:
        return status, error, {}
    played, unread = counts(gold, line["groups"]), line["stops"].count(UNREAD)
    cost = {
        "malformed": float(unread),
        "steps": float(line["replies"]),
        "calls": float(sum(map(len, line["groups"]))),
        "tokens": float(line["tokens"]),
        "seconds": float(line["seconds"]),
    }
    if status is SampleStatus.AGENT_FAILURE:  # the published scorer leaves rows with an error out
        return status, error, nothing(gold) | cost
    cost["upstream"] = played["f1"]
    if unread:  # and takes the text for an answer
        error = f"agent: {UNREAD} ({LEFT_IN_TEXT})"
        as_printed = {f"upstream_{c}": played[c] for c in COUNTS}
        return SampleStatus.AGENT_FAILURE, error, nothing(gold) | cost | as_printed
    return status, error, played | cost | {"reward": played["f1"]}
