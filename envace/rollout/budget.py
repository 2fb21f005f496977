"""Budgets of one episode: how many tokens a generation may use, and when calls and steps run out.

Flows in: prompt lengths and counts. Flows out: a token budget or None, and the stop reason of an exhausted
cap.
Invariant: prompt + budget never exceeds the context (`prompt_tokens` + `response_tokens`, or the policy's own
where that is smaller), so no server ever has to reject a request for its length.

REHEARSE's prompts are cut to `prompt_tokens`, so a response of any allowed length fits. ACT's prompt is the
episode so far and cannot be cut: `context_stop` says how far it may grow into the context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from envace.config import RolloutParams
from envace.config.method import Method
from envace.types import Role, Sampling, StopReason, replace

FLOOR = 16  # tokens; a generation with less room than this cannot hold a call or a sentence
MICRO_STEPS = 200  # generations of either role that end an episode even when caps wait for the end of a turn


def room(
    prompt: int, wanted: int, params: RolloutParams, context: int | None = None, floor: int = FLOOR
) -> int | None:
    """Tokens REHEARSE may write behind a prompt, or None when it is too long or no useful response fits.

    `prompt` and `wanted` are in tokens; `context` is the policy's own limit where it has a smaller one.
    """
    limit = min(params.context, context or params.context)
    wanted = min(wanted, params.response_tokens)
    left = min(wanted, limit - prompt)
    if prompt > params.prompt_tokens or left < min(floor, wanted):
        return None
    return left


def act_room(
    method: Method, prompt: int, wanted: int, params: RolloutParams, context: int | None = None
) -> int | None:
    """Tokens ACT may write behind a prompt, or None when the episode has to end. Units as in `room`."""
    left = min(params.context, context or params.context) - prompt
    return CONTEXT_STOPS[method.context_stop](left, min(wanted, params.response_tokens), params)


def _reserve(left: int, wanted: int, params: RolloutParams) -> int | None:
    """As the published code: no generation is begun unless a full-length one would leave a token over."""
    return wanted if left > params.response_tokens else None


def _shrink(left: int, wanted: int, params: RolloutParams) -> int | None:
    return min(wanted, left) if left >= min(FLOOR, wanted) else None


CONTEXT_STOPS: dict[str, Callable[[int, int, RolloutParams], int | None]] = {
    "reserve": _reserve,
    "shrink": _shrink,
}


def seeded(sampling: Sampling, max_tokens: int, seed: int, role: Role, step: int, index: int = 0) -> Sampling:
    """Sampling of one generation: its own token budget, and a seed that only this generation has."""
    digest = hashlib.sha256(f"{seed}/{role.value}/{step}/{index}".encode()).digest()
    return replace(sampling, max_tokens=max_tokens, seed=int.from_bytes(digest[:4]) & 0x7FFFFFFF)


def exhausted(
    method: Method, params: RolloutParams, steps: int, micro_steps: int, at_turn_end: bool
) -> StopReason | None:
    """Whether the cap on steps forbids another ACT generation. `steps` counts ACT's, `micro_steps` both
    roles'.

    `turn_caps: turn_end` looks only between user turns, except for the micro-step limit.
    """
    due = at_turn_end or method.turn_caps == "always"
    over = steps >= params.max_steps if due else micro_left(method, micro_steps) <= 0
    return StopReason.STEP_BUDGET if over else None


def micro_left(method: Method, micro_steps: int) -> float:
    """Generations of either role that the micro-step limit still allows."""
    return MICRO_STEPS - micro_steps if method.turn_caps == "turn_end" else float("inf")


def calls_exhausted(
    method: Method, params: RolloutParams, calls: int, asked: int, at_turn_end: bool
) -> StopReason | None:
    """Whether `asked` more calls break the cap. Between turns: whether it has been reached."""
    if at_turn_end:
        over = method.turn_caps == "turn_end" and calls >= params.max_calls
    else:
        over = method.turn_caps == "always" and calls + asked > params.max_calls
    return StopReason.CALL_BUDGET if over else None
