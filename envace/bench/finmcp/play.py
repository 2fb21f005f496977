"""Plays one conversation: gold history up to each user turn, the model on its own within the turn.

Flows in: a row, a chat endpoint, tools. Flows out: the names called, the messages, and how it ended.
Invariant: a broken rule of the agent, a failed endpoint and a failed tool server are three different ends, none of
them an exception that leaves here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from envace.bench.finmcp.rows import Row
from envace.bench.finmcp.tools import ServerFailed, Tools
from envace.bench.harness.answers import left_call
from envace.bench.vita.driver import fewer_of, problem_of

AGENT_CAUSED = ("malformed_call", "context_overflow")
FORGIVEN = ("empty_message", "call_without_id")  # an empty message ends the turn; an id we can give
UNREAD = "malformed_call"  # ends a turn: a call the server could not read and left in the text
THOUGHTS = ("reasoning_content", "reasoning")  # where servers put them
BUSY = (429, 500, 502, 503, 504)
TRIES, PAUSE_S = 4, 1.0


class Failed(Exception):
    """Ends a conversation: `by_agent` or not, with the name of the cause."""

    def __init__(self, cause: str, by_agent: bool = False):
        super().__init__(cause)
        self.cause, self.by_agent = cause, by_agent


@dataclass
class Chat:
    """An OpenAI-compatible endpoint."""

    client: httpx.AsyncClient
    url: str  # of its chat completions
    model: str
    body: dict[str, Any]
    seed: int
    pause_s: float = PAUSE_S

    async def ask(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], about: str
    ) -> dict[str, Any]:
        """The whole reply. Raises Failed."""
        body: dict[str, Any] = {"model": self.model, "messages": messages, "seed": self._seed(about)}
        body |= {"tools": tools} if tools else {}
        answer = await self._sent(body | self.body)
        problem, detail = problem_of(answer)
        if problem and problem not in FORGIVEN:
            cause = f"{problem} ({detail})" if detail else problem
            raise Failed(f"agent: {cause}", by_agent=problem in AGENT_CAUSED)
        return answer.json()

    async def _sent(self, body: dict[str, Any]) -> httpx.Response:
        for k in range(TRIES):
            last = k == TRIES - 1
            try:
                answer = await self.client.post(self.url, json=body)
                while less := fewer_of(answer, body):
                    body = body | {"max_tokens": less}
                    answer = await self.client.post(self.url, json=body)
                if answer.status_code not in BUSY or last:
                    return answer
            except httpx.HTTPError as e:
                if last:
                    raise Failed(f"agent: unreachable ({type(e).__name__})") from e
            await asyncio.sleep(self.pause_s * 2**k)
        raise AssertionError("unreachable")

    def _seed(self, about: str) -> int:
        return int(hashlib.sha256(f"{self.seed}/{about}".encode()).hexdigest()[:8], 16) % 2**31


@dataclass
class Played:
    """What became of a conversation."""

    groups: list[list[str]] = field(default_factory=list)  # names called, one list a message of the model
    messages: list[dict[str, Any]] = field(
        default_factory=list
    )  # user and system messages with what was played
    stops: list[str] = field(default_factory=list)  # how each turn ended
    status: str = "scored"  # scored | agent_failure | infra_failure
    error: str = ""
    tokens: int = 0
    replies: int = 0  # of the model


async def play(row: Row, chat: Chat, tools: Tools, max_calls: int) -> Played:
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
    played: Played, messages: list[dict[str, Any]], chat: Chat, tools: Tools, max_calls: int, about: str
) -> str:
    calls = 0
    while True:
        reply = await chat.ask(messages, tools.schemas, f"{about}/{played.replies}")
        played.replies += 1
        usage = reply.get("usage") or {}
        played.tokens += int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)
        said = _said(reply["choices"][0]["message"], played.replies)
        new = [said]
        asked = said.get("tool_calls", [])
        if asked:
            played.groups.append([c["function"]["name"] for c in asked])
            new += await asyncio.gather(*(_answered(c, tools) for c in asked))
        messages += new
        played.messages += new
        calls += len(asked)
        if not asked and left_call(said["content"]):
            return UNREAD
        if not asked:
            return "answered" if said["content"].strip() else "empty"
        if calls >= max_calls:
            return "call_budget"


def _said(message: dict[str, Any], n: int) -> dict[str, Any]:
    """The model's message as it stands in its own history: text, calls, and thoughts in the field they came in.

    Whether a thought is shown again is the chat template's business, as in training.
    """
    made: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    made |= {name: message[name] for name in THOUGHTS if message.get(name)}
    if message.get("tool_calls"):
        made["tool_calls"] = [
            {"id": c.get("id") or f"call-{n}-{i}", "type": "function", "function": _function(c)}
            for i, c in enumerate(message["tool_calls"])
        ]
    return made


def _function(call: dict[str, Any]) -> dict[str, str]:
    return {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or "{}"}


async def _answered(call: dict[str, Any], tools: Tools) -> dict[str, Any]:
    function = call["function"]
    text = await tools.call(function["name"], json.loads(function["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "name": function["name"], "content": text}
