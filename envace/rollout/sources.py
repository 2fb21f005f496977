"""Who answers ACT's calls: one protocol, three kinds of source.

Invariant: the source of an episode is the one `method.source` names; a world is asked one call at a time, in
call order.

A *model* plays the world (`rehearsal.py`: the policy itself, or a simulator behind an endpoint), *recorded*
results answer, or a true *environment* does (an executable world, an MCP server). `anchor.py` combines a
model with a true source.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Protocol

from envace.chat.contract import is_error
from envace.chat.renderer import Renderer
from envace.chat.transcript import Replies
from envace.config import RolloutParams
from envace.config.method import Method
from envace.errors import DataError
from envace.policy.protocol import Policy
from envace.rollout.anchor import AnchoredSource
from envace.rollout.interfaces import Answered, CallContext, ObservationSource
from envace.rollout.prompts import load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.types import FailureReason, Observation, Source, Task, ToolCall
from envace.worlds.registry import make_world

NO_RECORD = {"error": "no recorded response"}


class AnyWorld(Protocol):
    """What answers calls as a world does, at once or later."""

    def call(self, call: ToolCall) -> Observation | Awaitable[Observation]: ...


class EnvironmentSource:
    """An executable world, one per episode. `world.call(ToolCall)` returns an Observation, or awaits to
    one."""

    name = Source.ENVIRONMENT
    parallel = False

    def __init__(self, world: AnyWorld):
        self.world = world

    async def answer(self, ctx: CallContext) -> Answered:
        observation = self.world.call(ctx.call)
        if inspect.isawaitable(observation):
            observation = await observation
        ctx.ledger.append(ctx.call)
        return observation, None


class RecordedSource:
    """Results recorded for the task: a call gets the reply it had there (`Replies`)."""

    name = Source.RECORDED
    parallel = True

    def __init__(self, task: Task):
        self._replies = Replies(task.records)

    async def answer(self, ctx: CallContext) -> Answered:
        record = self._replies.next(ctx.call, ctx.turn)
        if record is None:
            failure = FailureReason.NO_RECORD
            return Observation(content=dict(NO_RECORD), source=self.name, error=True, failure=failure), None
        return Observation(content=record.result, source=self.name, error=is_error(record.result)), None


def make_source(
    task: Task, method: Method, policy: Policy, renderer: Renderer, params: RolloutParams
) -> ObservationSource:
    """The source `method.source` names, for one episode; with its anchors, where the method wants any.

    Anchors ask the task's executable world, else the MCP server where one is named, else the task's records.
    Raises DataError when the task has none of that kind.
    """
    if method.source == "recorded":
        return RecordedSource(task)
    if method.source == "mcp":
        return _mcp_source(task, params)
    if method.source == "environment":
        return _world_source(task)
    prompts = load_prompt_set(params.prompt_set)
    source = RehearsalSource(policy, renderer, prompts, method, params)
    if method.source == "simulator":
        from envace.rollout.simulator import SimulatorSource  # brings an HTTP client

        source = SimulatorSource(renderer, prompts, method, params)
    if not method.anchor_every:
        return source
    if task.world:
        return AnchoredSource(source, _world_source(task), method)
    truth = _mcp_source(task, params) if params.mcp.url else RecordedSource(task)
    return AnchoredSource(source, truth, method)


def _world_source(task: Task) -> EnvironmentSource:
    if task.world is None:
        raise DataError(f"task {task.id} has no executable world; use the source rehearse or recorded")
    return EnvironmentSource(make_world(task))


def _mcp_source(task: Task, params: RolloutParams) -> ObservationSource:
    from envace.rollout.mcp_source import McpSource  # brings its SDK

    return McpSource(task, params.mcp)
