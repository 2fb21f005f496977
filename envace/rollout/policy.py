"""What a policy is, and a scripted one.

Flows in: `GenerationRequest`, the exact prompt ids of one generation with the chat behind them. Flows out:
`Completion`, the exact ids that were sampled.
Invariant: `ask` checks a completion before anyone uses it; one that is unusable is the policy's failure.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from envace.chat.renderer import ByteRenderer, Renderer
from envace.chat.text import sanitise
from envace.rollout.halt import Halt, halting
from envace.types import JSON, FinishReason, Message, Role, Sampling, StopReason, ToolCall, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    role: Role
    messages: tuple[Message, ...]  # as rendered: system blocks included
    tools: tuple[dict[str, JSON], ...] = ()  # empty for REHEARSE
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    episode_id: str
    task_id: str
    turn: int
    step: int
    call: ToolCall | None = None  # REHEARSE: the call to answer
    call_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    text: str  # decoded output without the end-of-turn token
    output_ids: tuple[
        int, ...
    ]  # with the end-of-turn token when it was sampled; empty when the server hides ids
    logprobs: tuple[float, ...] = ()  # [len(output_ids)] or empty
    finish: FinishReason
    weight_version: int | None = None
    seconds: float | None = None  # entered by `ask`


class Policy(Protocol):
    """May also have `context: int`, the tokens its model can hold."""

    async def generate(self, request: GenerationRequest) -> Completion: ...


async def ask(
    policy: Policy, request: GenerationRequest, stop: StopReason = StopReason.POLICY_FAILED
) -> Completion:
    """One generation, and how long it took. Raises Halt(stop) when the policy raises or returns nothing usable."""
    began = time.monotonic()
    with halting(stop):
        completion = await policy.generate(request)
        completion = replace(completion, seconds=time.monotonic() - began)
    if completion.finish is FinishReason.ABORT:
        raise Halt(stop, "the server gave up on the generation")
    if completion.logprobs and len(completion.logprobs) != len(completion.output_ids):
        n, m = len(completion.logprobs), len(completion.output_ids)
        raise Halt(stop, f"{n} log-probabilities for {m} output tokens")
    return completion


def completion_of(text: str, renderer: Renderer, sampling: Sampling) -> Completion:
    """A completion for known text, cut to the token budget as a model's would be."""
    ids = [*renderer.encode(sanitise(text)), renderer.end_id]
    finish = FinishReason.STOP
    if len(ids) > sampling.max_tokens:
        ids, finish = ids[: sampling.max_tokens], FinishReason.LENGTH
        text = renderer.decode(ids)
    return Completion(text=text, output_ids=tuple(ids), logprobs=(0.0,) * len(ids), finish=finish)


Script = Callable[[GenerationRequest], str | Completion | Awaitable[str | Completion]]


class ScriptedPolicy:
    """A policy whose words a function (plain or async) or a list of texts supplies; ids come from the renderer.

    `ScriptedPolicy(["text of step 0", "text of step 1"])` uses one text per ACT step, whatever the episode.
    """

    def __init__(self, script: Script | Sequence[str], renderer: Renderer | None = None):
        self.script = script if callable(script) else lambda request: script[request.step]
        self.renderer = renderer or ByteRenderer()

    async def generate(self, request: GenerationRequest) -> Completion:
        said = self.script(request)
        if inspect.isawaitable(said):
            said = await said
        return said if isinstance(said, Completion) else completion_of(said, self.renderer, request.sampling)


def __getattr__(name: str) -> object:
    """`EndpointPolicy` is reachable from here without paying for HTTP imports when it is not used."""
    if name == "EndpointPolicy":
        from envace.rollout.endpoint import EndpointPolicy

        return EndpointPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
