"""Who answers a tool call: a tool server (live), or the recorded conversation (replay).

Invariant: what a server sends is untrusted text: it becomes the content of a tool message, cut to a length,
and nothing else. A tool that fails is an observation; a server that cannot be reached is a failure of the
run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from envace.bench.finmcp.rows import RecordedCall, ToolSchema, schema_of
from envace.types import JSON

if TYPE_CHECKING:  # of the harness's environment
    from mcp import Client

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


def offers(schemas: Sequence[ToolSchema], name: str) -> bool:
    """Whether a tool of this name is among them."""
    return any(schema["function"]["name"] == name for schema in schemas)


@dataclass
class Replay:
    """Recorded replies: of the same call, else of another call of the same tool, else a fixed error."""

    schemas: list[ToolSchema]
    recorded: Sequence[RecordedCall]

    async def call(self, name: str, arguments: dict[str, JSON]) -> str:
        same = [r for r in self.recorded if r.name == name]
        if same:
            wanted = json.dumps(arguments, sort_keys=True)
            exact = (r for r in same if json.dumps(r.arguments, sort_keys=True) == wanted)
            return next(exact, same[0]).reply[:LONGEST]
        return error_text(NO_RECORD if offers(self.schemas, name) else UNKNOWN)


@dataclass
class LiveTools:
    """A session with a tool server."""

    client: Client
    schemas: list[ToolSchema]

    async def call(self, name: str, arguments: dict[str, JSON]) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if not offers(self.schemas, name):
            return error_text(UNKNOWN)
        try:
            result = await self.client.call_tool(name, arguments)
        except MCPError as e:
            code = getattr(getattr(e, "error", None), "code", None)
            if code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):  # it tells of the connection, not of the call
                raise ServerFailed(str(e)) from e
            return error_text(str(e)[:LONGEST])
        except Exception as e:  # whatever the transport raises
            raise ServerFailed(f"{type(e).__name__}: {e}") from e
        parts = [b.text if b.type == "text" else f"[{b.type}]" for b in result.content]
        if not parts and result.structured_content is not None:
            parts = [json.dumps(result.structured_content, ensure_ascii=False)]
        return "\n".join(parts)[:LONGEST]


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
        listed, cursor = list(schemas or ()), None
        while schemas is None:  # all pages
            page = await client.list_tools(cursor=cursor)
            listed += [schema_of(t.name, t.description, t.input_schema) for t in page.tools]
            cursor = page.next_cursor
            if not cursor:
                break
        yield LiveTools(client, listed)
