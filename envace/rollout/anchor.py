"""Anchors: every so many calls of an episode a true source is asked as well.

Flows in: a source that rehearses, a true one, and the switches `anchor_every`, `anchor_mode` and
`anchor_weight`. Flows out: the answers ACT sees, and how far anchored rehearsals agree with the truth.
Invariant: with `anchor_every: k` the calls number k, 2k, ... of an episode are anchored (numbered from 1 as
ACT makes them, refused ones included; a refused call is not asked). Every true answer is in the ledger of
real calls.

`substitute`  ACT sees the true response; nothing is rehearsed for that call.
`bonus`       ACT sees the rehearsed response. Its generation keeps an agreement from 0 to 1 with the true one
              (`envace.chat.transcript.agreement`; 0 when it broke the contract), which earns its own row
              `anchor_weight` times as much (`envace.learn.rewards.credited_reward`).

The true source is the task's executable world, else the MCP server of `rollout.mcp`, else the task's records;
where those do not hold the call, it is rehearsed as any other and counted under `anchor/missed`. A world or a
server knows the anchored calls only: it answers from the state in which those, in call order, have left it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from envace.chat.transcript import agreement
from envace.config.method import Method
from envace.rollout.interfaces import Answered, CallContext, ObservationSource
from envace.types import FailureReason, Source, replace


class AnchoredSource:
    """Made for one episode, as its sources are."""

    parallel = True

    def __init__(self, source: ObservationSource, truth: ObservationSource, method: Method):
        self.name, self.source, self.truth = source.name, source, truth
        self.every, self.bonus = method.anchor_every, method.anchor_mode == "bonus"
        counters: Counter[str] | None = getattr(source, "counters", None)  # with what it cut off prompts
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._in_call_order = asyncio.Lock()  # first come, first served

    async def answer(self, ctx: CallContext) -> Answered:
        """The true response is unknown where nobody knows it, or no true source takes such arguments."""
        true, anchored = None, ctx.number % self.every == 0
        if anchored and isinstance(ctx.call.arguments, dict):
            async with self._in_call_order:
                true, _ = await self.truth.answer(ctx)
        if true is not None and true.failure is FailureReason.NO_RECORD:
            true = None
        if anchored:
            self.counters["anchor/asked" if true is not None else "anchor/missed"] += 1
        if true is not None and true.source is Source.RECORDED:  # a world and a server enter their own
            ctx.ledger.append(ctx.call)
        if true is not None and not self.bonus:
            return true, None
        observation, generation = await self.source.answer(ctx)
        if true is None or generation is None:  # without a generation there is no row to pay
            return observation, generation
        agreed = 0.0 if observation.failure else agreement(observation.content, true.content)
        return observation, replace(generation, agreement=agreed)

    async def aclose(self) -> None:
        """Both are closed, whatever the first of them does."""
        async with AsyncExitStack() as stack:
            for source in (self.source, self.truth):
                if aclose := getattr(source, "aclose", None):
                    stack.push_async_callback(aclose)
