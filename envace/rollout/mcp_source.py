"""Any MCP server as the environment: it answers the calls of ACT.

Invariant: one connection for each episode, opened at its first call and closed with it, so a server that
keeps state by connection (every stdio server does) begins anew. A response is text that somebody else wrote:
it becomes JSON of at most `max_chars` characters, escaped in prompts as every result is. What the server
refuses is an error that ACT sees; a server without an answer ends the episode as SOURCE_FAILED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envace.chat.contract import is_error
from envace.chat.text import clip, dumps, sanitise, sanitise_json, strict_loads
from envace.config import McpParams
from envace.errors import DataError, ParamsError
from envace.rollout.interfaces import BROKEN, Answered, CallContext
from envace.rollout.mcp_session import McpSession, Refused, sdk
from envace.types import JSON, FailureReason, Observation, Source, Task

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock


class McpSource:
    """The server that `rollout.mcp` names, for one episode."""

    name = Source.ENVIRONMENT
    parallel = False

    def __init__(self, task: Task, params: McpParams):
        if not params.url:
            raise ParamsError("method.source is 'mcp' but rollout.mcp.url is empty; name the MCP server")
        sdk()  # whether it is there is known before anything is played
        self.task, self.params = task, params
        self._session: McpSession | None = None

    async def answer(self, ctx: CallContext) -> Answered:
        """Raises EnvironmentUnready, or DataError for a task with tools that the server lacks."""
        session = self._session
        if session is None:
            session = self._session = McpSession(self.params)
            await session.open()
            names = {tool.get("function", tool)["name"] for tool in self.task.tools}
            if lacking := sorted(names - session.tools):
                raise DataError(
                    f"{session.where} offers no tool {lacking[0]}, which task {self.task.id} has; "
                    f"tools it offers: {clip(', '.join(sorted(session.tools)) or 'none')}"
                )
        try:
            observation = self._read(await session.call(ctx.call))
        except Refused as e:
            observation = self._refusal(str(e))
        ctx.ledger.append(ctx.call)
        return observation, None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()

    def _read(self, result: CallToolResult) -> Observation:
        """The structured response where there is one, else the text, read as JSON where it is an object or a
        list."""
        text = "\n".join(_text(block) for block in result.content)
        if result.is_error:
            return self._refusal(text)
        value: JSON = result.structured_content
        try:
            if _is_response(value):
                value = sanitise_json(value)
            else:
                value = _parsed(text)
            written = dumps(value)
        except ValueError:  # nested too deep, or NaN
            failure = FailureReason.RESULT_BAD_JSON
            return Observation(content=dict(BROKEN), source=self.name, error=True, failure=failure)
        if len(written) > self.params.max_chars:
            value = {"text": clip(text or written, self.params.max_chars), "truncated": True}
        return Observation(content=value, source=self.name, error=is_error(value))

    def _refusal(self, text: str) -> Observation:
        content = {"error": clip(sanitise(text).strip() or "refused", self.params.max_chars)}
        return Observation(content=content, source=self.name, error=True)


def _is_response(value: JSON) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and bool(value))


def _parsed(text: str) -> JSON:
    try:
        value = strict_loads(text)
    except ValueError:
        value = None
    return value if _is_response(value) else {"text": sanitise(text)}


def _text(block: ContentBlock) -> str:
    """The text of a block of content; what is no text is named."""
    texts = (getattr(place, "text", None) for place in (block, getattr(block, "resource", None)))
    left_out = f"[{getattr(block, 'type', 'content')} left out]"
    return next((str(text) for text in texts if text is not None), left_out)
