"""Budgets of one episode: how many tokens a generation may use, and when calls and steps run out.

Flows in: prompt lengths and counts. Flows out: a token budget or None, and the stop reason of an exhausted cap.
Invariant: prompt + budget never exceeds the context, so no server ever has to reject a request for its length.
"""

from __future__ import annotations

import hashlib

from envace.method import Method
from envace.params import RolloutParams
from envace.types import Role, Sampling, StopReason, replace

FLOOR = 16  # tokens; a generation with less room than this cannot hold a call or a sentence
MICRO_STEPS = 200  # ACT generations after which an episode stops even when caps wait for the end of a turn


def room(
    prompt: int, wanted: int, params: RolloutParams, context: int | None = None, floor: int = FLOOR
) -> int | None:
    """Tokens the next generation may write, or None when no useful one fits.

    `prompt` and `wanted` are in tokens; `context` is the policy's own limit where it has a smaller one.
    """
    limit = min(params.context, context or params.context)
    wanted = min(wanted, params.response_tokens)
    left = min(wanted, limit - prompt)
    if prompt > params.prompt_tokens or left < min(floor, wanted):
        return None
    return left


def seeded(sampling: Sampling, max_tokens: int, seed: int, role: Role, step: int, index: int = 0) -> Sampling:
    """Sampling of one generation: its own token budget, and a seed that only this generation has."""
    digest = hashlib.sha256(f"{seed}/{role.value}/{step}/{index}".encode()).digest()
    return replace(sampling, max_tokens=max_tokens, seed=int.from_bytes(digest[:4]) & 0x7FFFFFFF)


def exhausted(method: Method, params: RolloutParams, steps: int, at_turn_end: bool) -> StopReason | None:
    """Whether the cap on steps forbids another ACT generation.

    `turn_caps: turn_end` looks only between user turns, except for the micro-step limit.
    """
    due = at_turn_end or method.turn_caps == "always"
    return StopReason.STEP_BUDGET if steps >= (params.max_steps if due else MICRO_STEPS) else None


def calls_exhausted(
    method: Method, params: RolloutParams, calls: int, asked: int, at_turn_end: bool
) -> StopReason | None:
    """Whether `asked` more calls break the cap. Between turns: whether it has been reached."""
    if at_turn_end:
        over = method.turn_caps == "turn_end" and calls >= params.max_calls
    else:
        over = method.turn_caps == "always" and calls + asked > params.max_calls
    return StopReason.CALL_BUDGET if over else None
