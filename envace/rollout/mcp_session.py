"""One connection to an MCP server, by the official SDK (the extra `mcp`), in a task of its own.

Invariant: a connection that breaks never cancels the episode that uses it (the SDK's task groups live and die
in the connection's own task); a call is sent at most once, since it may have had its effect; nothing outlives
`aclose`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from contextlib import AsyncExitStack
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from envace.chat.text import clip, sanitise
from envace.config import McpParams
from envace.errors import EnvironmentUnready, ParamsError, describe
from envace.types import ToolCall

if TYPE_CHECKING:
    from mcp import StdioServerParameters
    from mcp.client import Transport
    from mcp.types import CallToolResult

T = TypeVar("T")
REFUSALS = {-32601, -32602}  # JSON-RPC: no such method, bad parameters. The server works and says no
PAUSE_S = 0.5  # after the first failed connection; doubles
CLOSING_S = 5.0
PAGES = 100  # of a list of tools


class Refused(Exception):
    """The server refuses the call."""


class McpSession:
    """`await open()`, then `await call(...)` any number of times, then `await aclose()`."""

    def __init__(self, params: McpParams):
        self.params, self.where = params, server_name(params)
        self.tools: set[str] = set()
        self._asked: asyncio.Queue[tuple[ToolCall, asyncio.Future[CallToolResult]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, in several attempts. Raises EnvironmentUnready."""
        _key(self.params)  # a missing one will not appear by waiting
        for attempt in range(self.params.attempts):
            if attempt:
                await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
            ready: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._serve(ready))
            try:
                self.tools = await self._within(ready, "to connect")
                return
            except EnvironmentUnready:
                await self.aclose()
                if attempt + 1 == self.params.attempts:
                    raise

    async def call(self, call: ToolCall) -> CallToolResult:
        """Raises Refused, or EnvironmentUnready when there is no answer."""
        answered: asyncio.Future[CallToolResult] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((call, answered))
        return await self._within(answered, f"to {call.name}")

    async def aclose(self) -> None:
        """End the connection, and with stdio the server."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSING_S)
            if task.done() and not task.cancelled():
                task.exception()  # retrieved: who waited for an answer has been told

    async def _within(self, wanted: asyncio.Future[T], what: str) -> T:
        """What the connection's task puts into `wanted`, if it does in time and lives."""
        task = self._task
        assert task is not None, "open() makes the connection's task"
        await asyncio.wait((wanted, task), timeout=self.params.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if wanted.done():
            return wanted.result()
        wanted.cancel()
        if not task.done():
            raise EnvironmentUnready(f"{self.where} gave no answer {what} within {self.params.timeout_s:g} s")
        error = None if task.cancelled() else task.exception()
        cause = f": {_described(error)}" if error else ""
        raise EnvironmentUnready(f"{self.where} gave no answer {what}, the connection ended{cause}")

    async def _serve(self, ready: asyncio.Future[set[str]]) -> None:
        """The connection's task: list the tools, then answer calls one after another."""
        kit = sdk()
        async with AsyncExitStack() as stack:
            server = await _transport(stack, self.params)
            client = await stack.enter_async_context(kit.Client(server, cache=None))
            tools, cursor = set[str](), None
            for _ in range(PAGES):
                page = await client.list_tools(cursor=cursor)
                tools |= {tool.name for tool in page.tools}
                if not (cursor := page.next_cursor):
                    break
            if not ready.done():
                ready.set_result(tools)
            while True:
                call, answered = await self._asked.get()
                if answered.done():
                    continue
                failed = f"{self.where} failed to answer {call.name}"
                try:
                    result = await client.call_tool(call.name, dict(call.arguments))
                except kit.MCPError as e:
                    unready = EnvironmentUnready(f"{failed}: {clip(sanitise(e.message))}")
                    fault: Exception = Refused(e.message) if e.code in REFUSALS else unready
                except Exception as e:  # the SDK's own checks of a result raise what they like
                    fault = EnvironmentUnready(f"{failed}: {_described(e)}")
                else:
                    if not answered.done():
                        answered.set_result(result)
                if not answered.done():  # somebody still waits
                    answered.set_exception(fault)


def server_name(params: McpParams) -> str:
    """The server as messages name it: without user, password and query."""
    if params.transport == "stdio":
        return f"MCP server {shlex.split(params.url)[0]!r}"
    parts = urlsplit(params.url)
    return f"MCP server {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _key(params: McpParams) -> dict[str, str]:
    """The key's variable and value; nothing where no key is named."""
    if params.key_env and not os.environ.get(params.key_env):
        raise EnvironmentUnready(
            f"{server_name(params)} needs a key: set the environment variable {params.key_env}"
        )
    return {params.key_env: os.environ[params.key_env]} if params.key_env else {}


async def _transport(stack: AsyncExitStack, params: McpParams) -> Transport | StdioServerParameters:
    """No shell reads a command; beside the key its environment holds what the SDK passes on (PATH, HOME,
    ...)."""
    if params.transport == "stdio":
        command, *args = shlex.split(params.url)
        started: StdioServerParameters = sdk().StdioServerParameters(
            command=command, args=args, env=_key(params)
        )
        return started
    token = next(iter(_key(params).values()), "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if params.transport == "sse":
        from mcp.client.sse import sse_client

        return sse_client(params.url, headers=headers, timeout=params.timeout_s)
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=params.timeout_s))
    return streamable_http_client(params.url, http_client=http)


def sdk() -> ModuleType:
    """The package mcp. Raises ParamsError naming the extra when it is not installed."""
    try:
        import mcp
    except ImportError as e:
        raise ParamsError(
            "method.source is 'mcp' but the package mcp is not installed: pip install 'envace[mcp]'"
        ) from e
    if not hasattr(mcp, "Client"):
        raise ParamsError("method.source 'mcp' needs version 2 of the package mcp: pip install 'envace[mcp]'")
    return mcp


def _described(error: BaseException) -> str:
    """The first real exception inside groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return describe(error)
