"""Runs the conversations of a job: `python -m envace.bench.finmcp.run job.json`.

Flows in: a job file (rows, tasks, endpoint, tools; keys by the names of variables). Flows out:
`samples.jsonl`, one line per finished conversation, and progress on standard output.
Invariant: run again, it plays only what has no line yet or failed for reasons that are not the agent's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from envace.bench.finmcp.play import Chat, Played, play
from envace.bench.finmcp.rows import FinMcpRow, ToolSchema, mined_tools, read, schema_of
from envace.bench.finmcp.tools import Replay, Tools, connect
from envace.bench.harness import answers
from envace.io.chat_client import ChatClient, ChatOptions
from envace.types import JSON

SERVER_TRIES, SERVER_PAUSE_S = 3, 2.0
FINISHED = ("scored", "agent_failure")
FinMcpJob = dict[str, JSON]  # as `adapter` writes it


async def run(job: FinMcpJob) -> None:
    """Play what is owed."""
    rows = {r.task: r for r in read([Path(p) for p in job["rows"]])}
    out, n, began, agent = Path(job["out"]), len(job["tasks"]), time.monotonic(), job["agent"]
    done = {line["task"] for line in answers.read_rows(out) if line["status"] in FINISHED}
    schemas, room = offered(job, list(rows.values())), asyncio.Semaphore(job["concurrency"])
    if done:
        print(f"{len(done)} of {n} conversations are here already", flush=True)
    options = ChatOptions(
        model=agent["model"],
        servers={agent["url"]: 1.0},
        key_env=agent["key"],
        timeout_s=600,
        concurrency=max(job["concurrency"], 1),
        backoff_s=job.get("pause_s", 1.0),
        refusal_fails=False,
    )
    async with ChatClient(options, shorter=answers.fewer) as client:
        chat = Chat(client, agent["body"], job["seed"])

        async def one(task: str) -> None:
            async with room:
                line = await sample(rows[task], chat, schemas, job)
            answers.append_row(out, line)
            done.add(task)
            spent = time.monotonic() - began
            print(f"{len(done)} of {n}, {spent:.0f} s: {task} {line['status']} {line['error']}", flush=True)

        await asyncio.gather(*(one(task) for task in job["tasks"] if task not in done))


async def sample(
    row: FinMcpRow, chat: Chat, schemas: list[ToolSchema] | None, job: FinMcpJob
) -> dict[str, JSON]:
    """One conversation; played anew when the tool server broke off."""
    began, played = time.monotonic(), Played()
    for k in range(SERVER_TRIES):
        played = await _attempt(row, chat, schemas, job)
        if not played.error.startswith("tools: "):
            break
        if k < SERVER_TRIES - 1:
            await asyncio.sleep(job.get("pause_s", SERVER_PAUSE_S) * 2**k)
    return {"task": row.task, "seconds": round(time.monotonic() - began, 3)} | asdict(played)


async def _attempt(row: FinMcpRow, chat: Chat, schemas: list[ToolSchema] | None, job: FinMcpJob) -> Played:
    played = Played(status="infra_failure", error="tools: never connected")
    try:
        async with _tools(row, schemas, job) as tools:
            try:
                played = await play(row, chat, tools, job["max_calls"])
            except Exception as e:  # a mistake of ours ends one conversation, under its name, and not the job
                played = Played(status="infra_failure", error=f"harness: {_named(e)}")
    except Exception as e:  # the connection's own, often a group; what was played before it closed stands
        if played.status == "infra_failure":
            played.error = f"tools: unreachable ({_named(e)})"
    return played


@asynccontextmanager
async def _tools(row: FinMcpRow, schemas: list[ToolSchema] | None, job: FinMcpJob) -> AsyncIterator[Tools]:
    if not (server := job.get("server")):
        yield Replay(schemas or [], row.recorded)
        return
    key = os.environ.get(server["key"], "") if server["key"] else ""
    async with connect(server["url"], server["transport"], key, schemas, server["timeout_s"]) as live:
        yield live


def _named(error: BaseException) -> str:
    """The first cause inside a group of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:200]


def offered(job: FinMcpJob, rows: Sequence[FinMcpRow]) -> list[ToolSchema] | None:
    """The tools offered in every conversation; None leaves them to the server."""
    if not job["tools"]:
        return None if job.get("server") else mined_tools(rows)
    schemas = []
    for tool in json.loads(Path(job["tools"]).read_text(encoding="utf-8")):
        if "function" in tool:
            schemas.append({"type": "function", "function": tool["function"]})
        else:  # as a tool server lists it
            parameters = tool.get("inputSchema") or tool.get("input_schema") or tool.get("parameters")
            schemas.append(schema_of(tool["name"], tool.get("description"), parameters or {"type": "object"}))
    return schemas


if __name__ == "__main__":
    asyncio.run(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
