"""Policies that need no model: words from a script, and the two floors that every score stands on.

A floor's answer depends on the request and the seed only, never on the order requests arrive in.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Awaitable, Callable, Sequence

from envace.chat.calls import render_calls
from envace.chat.contract import render_result
from envace.chat.renderer import ByteRenderer, Renderer
from envace.chat.text import sanitise
from envace.policy.protocol import Completion, GenerationRequest
from envace.types import FinishReason, Role, Sampling, ToolCall

WORD = re.compile(r"#?\b[a-z]+\b")
Script = Callable[[GenerationRequest], str | Completion | Awaitable[str | Completion]]


def completion_of(text: str, renderer: Renderer, sampling: Sampling) -> Completion:
    """A completion for known text, cut to the token budget as a model's would be."""
    ids = [*renderer.encode(sanitise(text)), renderer.end_id]
    finish = FinishReason.STOP
    if len(ids) > sampling.max_tokens:
        ids, finish = ids[: sampling.max_tokens], FinishReason.LENGTH
        text = renderer.decode(ids)
    return Completion(text=text, output_ids=tuple(ids), logprobs=(0.0,) * len(ids), finish=finish)


class ScriptedPolicy:
    """A policy whose words a function (plain or async) or a list of texts supplies; ids come from the
    renderer.

    `ScriptedPolicy(["text of step 0", "text of step 1"])` uses one text per ACT step, whatever the episode.
    """

    def __init__(self, script: Script | Sequence[str], renderer: Renderer | None = None):
        self.script: Script = script if callable(script) else lambda request: script[request.step]
        self.renderer: Renderer = renderer or ByteRenderer()

    async def generate(self, request: GenerationRequest) -> Completion:
        said = self.script(request)
        if inspect.isawaitable(said):
            said = await said
        return said if isinstance(said, Completion) else completion_of(said, self.renderer, request.sampling)


class RulePolicy(ScriptedPolicy):
    """A policy that writes text by a rule; subclasses say what in `speak`."""

    def __init__(self, renderer: Renderer | None = None):
        """`renderer` turns text into ids; without one, ids are UTF-8 bytes."""
        super().__init__(self.speak, renderer)

    def speak(self, request: GenerationRequest) -> str:
        """The text to answer with."""
        raise NotImplementedError


class DoNothingPolicy(RulePolicy):
    """Makes no call and tells the user nothing; as REHEARSE it refuses every call."""

    def speak(self, request: GenerationRequest) -> str:
        if request.role is Role.REHEARSE:
            return render_result({"error": "unavailable"})
        return "sorry, that cannot be done"


class RandomPolicy(RulePolicy):
    """Calls random tools with random words of the conversation, or replies with a few of them."""

    def __init__(self, seed: int, renderer: Renderer | None = None):
        super().__init__(renderer)
        self.seed = seed

    def speak(self, request: GenerationRequest) -> str:
        r = request
        rng = random.Random(f"{self.seed}/{r.episode_id}/{r.role}/{r.turn}/{r.step}/{r.call_index}")
        text = " ".join(m.content for m in request.messages if m.role != "system")
        words = sorted(set(WORD.findall(text))) or ["ok"]
        if request.role is Role.REHEARSE:
            return render_result({rng.choice(words): rng.choice(words)})
        if request.tools and rng.random() < 0.6:
            tool = rng.choice(request.tools)["function"]
            names = tool["parameters"].get("properties", {})
            arguments = {n: "#" * n.endswith("_id") + rng.choice(words).lstrip("#") for n in names}
            return render_calls([ToolCall(name=tool["name"], arguments=arguments)])
        return " ".join(rng.choice(words) for _ in range(rng.randint(1, 6)))
