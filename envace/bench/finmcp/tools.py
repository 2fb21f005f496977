"""Who answers a tool call: a tool server (live), or the recorded conversation (replay).

Flows in: a call. Flows out: the text a model is shown.
Invariant: what a server sends is untrusted text: it becomes the content of a tool message, cut to a length,
and nothing else. A tool that fails is an observation; a server that cannot be reached is a failure of the
run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from envace.bench.finmcp.rows import RecordedCall, ToolSchema
from envace.types import JSON

if TYPE_CHECKING:  # of the harness's environment
    from mcp import Client, MCPError
    from mcp_types import CallToolResult

UNKNOWN = "there is no tool of this name"
NO_RECORD = "no reply to this tool is recorded in this conversation"
LONGEST = 60_000  # characters of a reply that a model is shown


class ServerFailed(Exception):
    """The tool server cannot be reached or broke off."""


class Tools(Protocol):
    """Answers calls of the tools it offers."""

    schemas: list[ToolSchema]

    async def call(self, name: str, arguments: dict[str, JSON]) -> str: ...


def error_text(why: str) -> str:
    """A refusal as a tool would word it."""
    return json.dumps({"error": why}, ensure_ascii=False)


@dataclass
class Replay:
    """Recorded replies: of the same call, else of another call of the same tool, else a fixed error."""

    schemas: list[ToolSchema]
    recorded: Sequence[RecordedCall]
    kinds: dict[str, int] = field(default_factory=lambda: {"exact": 0, "other": 0, "none": 0})

    async def call(self, name: str, arguments: dict[str, JSON]) -> str:
        same = [r for r in self.recorded if r.name == name]
        exact = [r for r in same if _canonical(r.arguments) == _canonical(arguments)]
        self.kinds["exact" if exact else "other" if same else "none"] += 1
        if found := exact or same:
            return found[0].reply[:LONGEST]
        return error_text(NO_RECORD if name in _names(self.schemas) else UNKNOWN)


def _canonical(value: JSON) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _names(schemas: Sequence[ToolSchema]) -> set[str]:
    return {s["function"]["name"] for s in schemas}


class LiveTools:
    """A session with a tool server."""

    def __init__(self, client: Client, schemas: list[ToolSchema]):
        self.client, self.schemas = client, schemas

    async def call(self, name: str, arguments: dict[str, JSON]) -> str:
        from mcp import MCPError

        if name not in _names(self.schemas):
            return error_text(UNKNOWN)
        try:
            result = await self.client.call_tool(name, arguments)
        except MCPError as e:
            if _lost(e):
                raise ServerFailed(str(e)) from e
            return error_text(str(e)[:LONGEST])
        except Exception as e:  # whatever the transport raises
            raise ServerFailed(f"{type(e).__name__}: {e}") from e
        return _text(result)[:LONGEST]


def _lost(error: MCPError) -> bool:
    """Whether a protocol error tells of the connection, not of the call."""
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    return getattr(getattr(error, "error", None), "code", None) in (CONNECTION_CLOSED, REQUEST_TIMEOUT)


def _text(result: CallToolResult) -> str:
    """The texts of a result, one after the other; what is no text is named."""
    parts = [b.text if b.type == "text" else f"[{b.type}]" for b in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


@asynccontextmanager
async def connect(
    url: str, transport: str, key: str, schemas: list[ToolSchema] | None, timeout_s: float
) -> AsyncIterator[LiveTools]:
    """Open a session; the server's own tools are offered unless `schemas` says others.

    Raises whatever the transport does, possibly as a group: the caller names it.
    """
    from mcp import Client
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    headers = {"Authorization": f"Bearer {key}"} if key and "{key}" not in url else {}
    url = url.replace("{key}", key)
    async with AsyncExitStack() as stack:
        if transport == "sse":
            session = Client(sse_client(url, headers=headers), mode="legacy", read_timeout_seconds=timeout_s)
        else:
            http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
            session = Client(streamable_http_client(url, http_client=http), read_timeout_seconds=timeout_s)
        client = await stack.enter_async_context(session)
        yield LiveTools(client, schemas or await _listed(client))


async def _listed(client: Client) -> list[ToolSchema]:
    """The server's tools as function schemas, all pages of them."""
    tools, cursor, more = [], None, True
    while more:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        more = bool(cursor)
    return [schema_of(t.name, t.description, t.input_schema) for t in tools]


def schema_of(name: str, description: str | None, parameters: dict[str, JSON]) -> ToolSchema:
    """A tool as a function schema."""
    function = {"name": name, "description": description or name, "parameters": parameters}
    return ToolSchema(type="function", function=function)
