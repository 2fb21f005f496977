"""Plays one conversation: gold history up to each user turn, the model on its own within the turn.

Flows in: a row, a chat endpoint, tools. Flows out: the names called, the messages, and how it ended.
Invariant: a broken rule of the agent, a failed endpoint and a failed tool server are three different ends,
none of them an exception that leaves here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field

from envace.bench.finmcp.rows import UNREAD, ChatMessage, FinMcpRow, ToolSchema
from envace.bench.finmcp.tools import ServerFailed, Tools
from envace.bench.harness import answers
from envace.io.chat_client import ChatClient, ChatFault, ChatReply
from envace.types import JSON

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
