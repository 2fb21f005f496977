"""Runs the conversations of a job: `python -m envace.bench.finmcp.run job.json`.

Flows in: a job file (rows, tasks, endpoint, tools; keys by the names of variables). Flows out: `samples.jsonl`, one
line a finished conversation, and progress on standard output.
Invariant: a line is written whole or not at all; run again, it plays only what has no line yet or failed for reasons
that are not the agent's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envace.bench.finmcp.play import Chat, Played, play
from envace.bench.finmcp.rows import Row, mined_tools, read
from envace.bench.finmcp.tools import Replay, Tools, connect
from envace.bench.harness import answers
from envace.io.chat_client import ChatClient, ChatOptions

SERVER_TRIES, SERVER_PAUSE_S = 3, 2.0
FINISHED = ("scored", "agent_failure")


async def run(job: dict[str, Any]) -> None:
    rows = {r.task: r for r in read([Path(p) for p in job["rows"]])}
    out = Path(job["out"])
    done = finished(out)
    owed = [t for t in job["tasks"] if t not in done]
    schemas = offered(job, list(rows.values()))
    room, began, n = asyncio.Semaphore(job["concurrency"]), time.monotonic(), len(job["tasks"])
    print(f"{len(done)} of {n} conversations are here already", flush=True) if done else None
    agent = job["agent"]
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
            _append(out, line)
            done.add(task)
            spent = time.monotonic() - began
            print(f"{len(done)} of {n}, {spent:.0f} s: {task} {line['status']} {line['error']}", flush=True)

        await asyncio.gather(*map(one, owed))


async def sample(
    row: Row, chat: Chat, schemas: list[dict[str, Any]] | None, job: dict[str, Any]
) -> dict[str, Any]:
    """One conversation; played anew when the tool server broke off."""
    began, played = time.monotonic(), Played()
    for k in range(SERVER_TRIES):
        played = await _attempt(row, chat, schemas, job)
        if not played.error.startswith("tools: "):
            break
        if k < SERVER_TRIES - 1:
            await asyncio.sleep(job.get("pause_s", SERVER_PAUSE_S) * 2**k)
    return {"task": row.task, "seconds": round(time.monotonic() - began, 3)} | asdict(played)


async def _attempt(row: Row, chat: Chat, schemas: list[dict[str, Any]] | None, job: dict[str, Any]) -> Played:
    played = Played(status="infra_failure", error="tools: never connected")
    try:
        async with _tools(row, schemas, job) as tools:
            played = await _played(row, chat, tools, job["max_calls"])
    except Exception as e:  # the connection's own, often a group; what was played before it closed stands
        if played.status == "infra_failure":
            played.error = f"tools: unreachable ({_named(e)})"
    return played


async def _played(row: Row, chat: Chat, tools: Tools, max_calls: int) -> Played:
    """A mistake of ours ends one conversation, under its own name, and not the job."""
    try:
        return await play(row, chat, tools, max_calls)
    except Exception as e:
        return Played(status="infra_failure", error=f"harness: {_named(e)}")


@asynccontextmanager
async def _tools(row: Row, schemas: list[dict[str, Any]] | None, job: dict[str, Any]) -> AsyncIterator[Tools]:
    server = job.get("server")
    if server is None:
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


def offered(job: dict[str, Any], rows: list[Row]) -> list[dict[str, Any]] | None:
    """The tools offered in every conversation; None leaves them to the server."""
    if job["tools"]:
        return [_function(t) for t in json.loads(Path(job["tools"]).read_text(encoding="utf-8"))]
    return None if job.get("server") else mined_tools(rows)


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a function schema, from that form or from a tool server's."""
    if "function" in tool:
        return {"type": "function", "function": tool["function"]}
    schema = (
        tool.get("inputSchema") or tool.get("input_schema") or tool.get("parameters") or {"type": "object"}
    )
    named = {"name": tool["name"], "description": tool.get("description") or tool["name"]}
    return {"type": "function", "function": named | {"parameters": schema}}


def finished(out: Path) -> set[str]:
    """Tasks that need not be played again."""
    return {line["task"] for line in lines(out) if line["status"] in FINISHED}


def lines(out: Path) -> list[dict[str, Any]]:
    """The whole lines of a samples file; what a kill cut short is left out."""
    found = []
    for text in out.read_text(encoding="utf-8").split("\n") if out.exists() else ():
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def _append(out: Path, line: dict[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as f:
        if f.tell() and not _ends_whole(out):
            f.write("\n")
        f.write(json.dumps(line, ensure_ascii=False) + "\n")


def _ends_whole(out: Path) -> bool:
    with out.open("rb") as f:
        f.seek(-1, 2)
        return f.read(1) == b"\n"


if __name__ == "__main__":
    asyncio.run(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
