"""A simulator: another model, behind an endpoint, given the identical REHEARSE prompt.

Invariant: its words are not the policy's, so no generation comes back and nothing of it is trained on. A
server that cannot be used ends the episode as SOURCE_FAILED, with its address and the cause.
"""

from __future__ import annotations

from envace.chat.renderer import Renderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.errors import ParamsError
from envace.rollout.endpoint import EndpointPolicy
from envace.rollout.interfaces import Answered, CallContext
from envace.rollout.prompts import PromptSet
from envace.rollout.rehearsal import RehearsalSource
from envace.types import Endpoint, Source, replace

_policies: dict[str, EndpointPolicy] = {}
"""One for all episodes of a process: they share its connections and its limit of requests in flight."""


class SimulatorSource(RehearsalSource):
    """The prompt is cut as the policy's own would be, by the policy's tokenizer; sampling is the
    simulator's."""

    def __init__(self, renderer: Renderer, prompt_set: PromptSet, method: Method, params: RolloutParams):
        own = params.simulator
        if not (own.base_url and own.model):
            raise ParamsError(
                "method.source is 'simulator' but rollout.simulator.base_url or .model is empty; "
                "name the server that plays the world"
            )
        if repr(own) not in _policies:
            endpoint = Endpoint(
                base_url=own.base_url, model=own.model, key_env=own.key_env, extra_body=own.extra_body
            )
            _policies[repr(own)] = EndpointPolicy(
                endpoint, timeout_s=own.timeout_s, attempts=own.attempts, concurrency=own.concurrency
            )
        params = replace(params, response_tokens=own.max_tokens or params.response_tokens)
        super().__init__(_policies[repr(own)], renderer, prompt_set, method, params, Source.SIMULATOR)

    async def answer(self, ctx: CallContext) -> Answered:
        own, longest = self.params.simulator, self.params.response_tokens
        sampling = replace(ctx.sampling, temperature=own.temperature, top_p=own.top_p, max_tokens=longest)
        return await super().answer(replace(ctx, sampling=sampling))
