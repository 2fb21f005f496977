"""What a policy is: exact prompt ids in, the exact ids that were sampled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envace.types import JSON, FinishReason, Message, Role, Sampling, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation to be written."""

    role: Role
    messages: tuple[Message, ...]
    """As rendered: system blocks included."""
    tools: tuple[dict[str, JSON], ...] = ()
    """Empty for REHEARSE."""
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    episode_id: str
    task_id: str
    turn: int
    step: int
    call: ToolCall | None = None
    """REHEARSE: the call to answer."""
    call_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was written."""

    text: str
    """Decoded output without the end-of-turn token."""
    output_ids: tuple[int, ...]
    """With the end-of-turn token when it was sampled; empty when the server hides ids."""
    logprobs: tuple[float, ...] = ()
    """One for each output id, or none."""
    finish: FinishReason
    weight_version: int | None = None
    seconds: float | None = None
    """Entered by the episode, which waits for it."""


class Policy(Protocol):
    """Writes generations. May also have `context: int`, the tokens its model can hold."""

    async def generate(self, request: GenerationRequest) -> Completion: ...
