"""What an episode asks of its plug-ins, and the one boundary at which their failures become stop reasons.

Invariant: cancellation and exits pass untouched, and the first reason given is the one that is kept. A
`CallContext` holds nothing of the true world; what a source learns there goes into its answer alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from envace.chat.text import sanitise
from envace.errors import describe
from envace.policy.protocol import Completion, GenerationRequest, Policy
from envace.types import (
    FailureReason,
    FinishReason,
    Generation,
    Message,
    Observation,
    Sampling,
    Source,
    StopReason,
    Task,
    ToolCall,
    replace,
)

Answered = tuple[Observation, Generation | None]  # the generation where the policy wrote the response
BROKEN = {"error": "the tool gave no usable response"}
FLOOR = 16  # tokens; a generation with less room than this cannot hold a call or a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """One call with the conversation before it: what an observation source is asked."""

    task: Task
    call: ToolCall
    history: tuple[Message, ...]
    """Before the ACT message that makes the call."""
    act_reply: str
    """That message as ACT wrote it, thinking included."""
    turn: int
    step: int
    call_index: int = 0
    number: int = 0
    """Of the call in its episode, from 1; calls that were refused count too."""
    episode_id: str = ""
    sampling: Sampling = Sampling()
    ledger: list[ToolCall] = field(default_factory=list, compare=False)
    """A true source enters what it answers."""


class ObservationSource(Protocol):
    """`parallel`: whether the calls of one ACT message may be answered at the same time.

    Made for one episode. May also have `async aclose()`, called when the episode ends, and `counters`, which
    are added to the episode's then.
    """

    name: Source
    parallel: bool

    async def answer(self, ctx: CallContext) -> Answered: ...


class Halt(Exception):
    """Ends an episode for a named reason."""

    def __init__(self, stop: StopReason, detail: str = ""):
        super().__init__(detail or stop.value)
        self.stop, self.detail = stop, detail


@contextmanager
def halting(stop: StopReason) -> Iterator[None]:
    """Turn any exception of foreign code into `Halt(stop)`: the documented boundary of the rollout.

    Policies, worlds and judges are plug-ins; one that breaks costs its episode, not the run. CancelledError
    is no `Exception` and passes.
    """
    try:
        yield
    except Halt:
        raise
    except Exception as e:
        raise Halt(stop, describe(e)) from e


async def ask(
    policy: Policy, request: GenerationRequest, stop: StopReason = StopReason.POLICY_FAILED
) -> Completion:
    """One generation, and how long it took. Raises Halt(stop) when the policy raises or returns nothing
    usable."""
    began = time.monotonic()
    with halting(stop):
        completion = await policy.generate(request)
        completion = replace(completion, seconds=time.monotonic() - began)
    if completion.finish is FinishReason.ABORT:
        raise Halt(stop, "the server gave up on the generation")
    known, written = len(completion.logprobs), len(completion.output_ids)
    if known not in (0, written):
        raise Halt(stop, f"{known} log-probabilities for {written} output tokens")
    return completion


def generation_of(
    request: GenerationRequest, completion: Completion, failure: FailureReason | None = None
) -> Generation:
    """What is kept of one generation of either role."""
    return Generation(
        role=request.role,
        turn=request.turn,
        step=request.step,
        call_index=request.call_index,
        prompt_ids=request.prompt_ids,
        output_ids=completion.output_ids,
        logprobs=completion.logprobs,
        text=sanitise(completion.text),
        sampling=request.sampling,
        finish=completion.finish,
        weight_version=completion.weight_version,
        failure=failure,
        seconds=completion.seconds,
    )
