"""What an observation source is asked, and what it answers.

Flows in: nothing. Flows out: `CallContext`, one call with the conversation before it, and the protocol of sources.
Invariant: a context holds nothing of the true world; what a source learns there goes into its answer alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from envace.types import Generation, Message, Observation, Sampling, Source, Task, ToolCall

Answer = tuple[Observation, Generation | None]  # the generation where the policy wrote the response


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    task: Task
    call: ToolCall
    history: tuple[Message, ...]  # before the ACT message that makes the call
    act_reply: str  # that message as ACT wrote it, thinking included
    turn: int
    step: int
    call_index: int = 0
    number: int = 0  # of the call in its episode, from 1; calls that were refused count too
    episode_id: str = ""
    sampling: Sampling = Sampling()
    ledger: list[ToolCall] = field(
        default_factory=list, compare=False
    )  # a true source enters what it answers


class ObservationSource(Protocol):
    """`parallel`: whether the calls of one ACT message may be answered at the same time.

    Made for one episode. May also have `async aclose()`, called when the episode ends, and `counters`, which are
    added to the episode's then.
    """

    name: Source
    parallel: bool

    async def answer(self, ctx: CallContext) -> Answer: ...
