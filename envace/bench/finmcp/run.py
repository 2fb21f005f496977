"""Runs the conversations of a job: `python -m envace.bench.finmcp.run job.json`.

Flows in: a job file (rows, tasks, endpoint, tools; keys by the names of variables). Flows out:
`samples.jsonl`, one line per finished conversation, and progress on standard output.
Invariant: gold history up to each user turn, the model on its own within the turn. A broken rule of the
agent, a failed endpoint and a failed tool server are three different ends, none of them an exception that
ends the job. Run again, it plays only what has no line yet or failed for reasons that are not the agent's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from envace.bench.finmcp.rows import UNREAD, ChatMessage, FinMcpRow, ToolSchema, mined_tools, read, schema_of
from envace.bench.finmcp.tools import Replay, ServerFailed, Tools, connect
from envace.bench.harness import answers
from envace.io.chat_client import ChatClient, ChatFault, ChatOptions, ChatReply
from envace.types import JSON

SERVER_TRIES, SERVER_PAUSE_S = 3, 2.0
FINISHED = ("scored", "agent_failure")
FinMcpJob = dict[str, JSON]  # as `adapter` writes it
THOUGHTS = ("reasoning_content", "reasoning")  # where servers put them


class Failed(Exception):
    """Ends a conversation: `by_agent` or not, with the name of the cause."""

    def __init__(self, cause: str, by_agent: bool = False):
        super().__init__(cause)
        self.cause, self.by_agent = cause, by_agent


@dataclass
class Chat:
    """The model that plays the agent."""

    client: ChatClient
    body: dict[str, JSON]
    seed: int

    async def ask(self, messages: list[ChatMessage], tools: list[ToolSchema], about: str) -> ChatReply:
        """One message of the model. Raises Failed."""
        seed = int(hashlib.sha256(f"{self.seed}/{about}".encode()).hexdigest()[:8], 16) % 2**31
        body: dict[str, JSON] = {"messages": messages, "seed": seed, **({"tools": tools} if tools else {})}
        try:
            reply = await self.client.ask(body | self.body)
        except ChatFault as fault:
            why = f"unreachable ({fault.detail if fault.reason == 'unreachable' else fault})"
            why = "no_chat_completion" if fault.reason == "malformed" else why
            overflow = False
            if fault.status:
                problem = answers.refusal_of(fault.status, fault.said)
                why = problem + (f" ({fault.said[: answers.NAMED]})" if fault.said else "")
                overflow = problem == "context_overflow"
            raise Failed(f"agent: {why}", by_agent=overflow) from None
        for call in reply.message.get("tool_calls") or ():
            if not answers.well_formed(call if isinstance(call, dict) else {}):
                detail = json.dumps(call, ensure_ascii=False)[: answers.NAMED]
                raise Failed(f"agent: malformed_call ({detail})", by_agent=True)
        return reply


@dataclass
class Played:
    """What became of a conversation."""

    groups: list[list[str]] = field(default_factory=list)  # names called, one list per message of the model
    messages: list[ChatMessage] = field(default_factory=list)  # user and system messages with what was played
    stops: list[str] = field(default_factory=list)  # how each turn ended
    status: str = "scored"  # scored | agent_failure | infra_failure
    error: str = ""
    tokens: int = 0
    replies: int = 0  # of the model


async def play(row: FinMcpRow, chat: Chat, tools: Tools, max_calls: int) -> Played:
    """Every turn of the row. Never raises for what agent, endpoint or tool server do."""
    played = Played()
    try:
        for k, history in enumerate(row.turns):
            played.messages += history if k == 0 else history[-1:]
            played.stops.append(await _turn(played, list(history), chat, tools, max_calls, f"{row.task}/{k}"))
    except Failed as e:
        played.status, played.error = ("agent_failure" if e.by_agent else "infra_failure"), e.cause
    except ServerFailed as e:
        played.status, played.error = "infra_failure", f"tools: unreachable ({e})"
    return played


async def _turn(
    played: Played, messages: list[ChatMessage], chat: Chat, tools: Tools, max_calls: int, about: str
) -> str:
    async def answered(call: ChatMessage) -> ChatMessage:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        text = await tools.call(name, arguments)
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": text}

    calls = 0
    while True:
        reply = await chat.ask(messages, tools.schemas, f"{about}/{played.replies}")
        played.replies += 1
        played.tokens += (reply.tokens_in or 0) + (reply.tokens_out or 0)
        said = _said(reply, played.replies)
        asked = said.get("tool_calls", [])
        if asked:
            played.groups.append([c["function"]["name"] for c in asked])
        new = [said, *(await asyncio.gather(*map(answered, asked)))]
        messages += new
        played.messages += new
        calls += len(asked)
        if not asked and answers.left_call(said["content"]):
            return UNREAD
        if not asked:
            return "answered" if said["content"].strip() else "empty"
        if calls >= max_calls:
            return "call_budget"


def _said(reply: ChatReply, n: int) -> ChatMessage:
    """The model's message as it stands in its own history: text, calls, and thoughts in the field they came
    in.

    Whether a thought is shown again is the chat template's business, as in training. Calls without an id get
    one.
    """
    made: ChatMessage = {"role": "assistant", "content": reply.text}
    made |= {name: reply.message[name] for name in THOUGHTS if reply.message.get(name)}
    for i, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": call.arguments}
        asked = {"id": call.id or f"call-{n}-{i}", "type": "function", "function": function}
        made.setdefault("tool_calls", []).append(asked)
    return made


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
