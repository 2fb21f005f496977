"""Policies that need no model: the floors every score stands on.

Flows in: generation requests. Flows out: text a policy could have written, with its token ids.
Invariant: an answer depends on the request and the seed only, never on the order requests arrive in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from envace.chat.calls import render_calls
from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer, Renderer
from envace.rollout.policy import Completion, GenerationRequest, completion_of
from envace.types import Role, Task, ToolCall

WORD = re.compile(r"#?\b[a-z]+\b")


class Speaker:
    """A policy that writes text by a rule; subclasses say what in `speak`."""

    def __init__(self, renderer: Renderer | None = None):
        """`renderer` turns text into ids; without one, ids are UTF-8 bytes."""
        self.renderer = renderer or ByteRenderer()

    def speak(self, request: GenerationRequest) -> str:
        """The text to answer with."""
        raise NotImplementedError

    async def generate(self, request: GenerationRequest) -> Completion:
        return completion_of(self.speak(request), self.renderer, request.sampling)


class DoNothingPolicy(Speaker):
    """Makes no call and tells the user nothing; as REHEARSE it refuses every call."""

    def speak(self, request: GenerationRequest) -> str:
        return (
            render_result({"error": "unavailable"})
            if request.role is Role.REHEARSE
            else "sorry, that cannot be done"
        )


class RandomPolicy(Speaker):
    """Calls random tools with random words of the conversation, or replies with a few of them."""

    def __init__(self, seed: int, renderer: Renderer | None = None):
        super().__init__(renderer)
        self.seed = seed

    def speak(self, request: GenerationRequest) -> str:
        r = request
        rng = random.Random(f"{self.seed}/{r.episode_id}/{r.role}/{r.turn}/{r.step}/{r.call_index}")
        words = _words(request)
        if request.role is Role.REHEARSE:
            return render_result({rng.choice(words): rng.choice(words)})
        if request.tools and rng.random() < 0.6:
            return _random_call(rng, request.tools, words)
        return " ".join(rng.choice(words) for _ in range(rng.randint(1, 6)))


def _words(request: GenerationRequest) -> list[str]:
    text = " ".join(m.content for m in request.messages if m.role != "system")
    return sorted(set(WORD.findall(text))) or ["ok"]


def _random_call(rng: random.Random, tools: tuple[dict[str, Any], ...], words: list[str]) -> str:
    tool = rng.choice(tools)["function"]
    names = tool["parameters"].get("properties", {})
    arguments = {n: "#" * n.endswith("_id") + rng.choice(words).lstrip("#") for n in names}
    return render_calls([ToolCall(name=tool["name"], arguments=arguments)])


def floor_policies(tasks: Sequence[Task], seed: int) -> dict[str, Speaker]:
    """Agents of the desk that need no skill: `always_refuse`, and `blind`, the best that reads no observation."""
    from envace.worlds.desk.blind import FIT_TASKS, AlwaysRefuse, BlindPolicy, fit
    from envace.worlds.desk.tasks import generate

    return {
        "always_refuse": AlwaysRefuse(tasks),
        "blind": BlindPolicy(tasks, fit(generate(seed, "warm", FIT_TASKS))),
    }
