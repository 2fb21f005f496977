"""A model in the REHEARSE role: it plays the world from the prompt set's text.

Invariant: a response that breaks the rehearsal contract becomes an error observation with a named failure;
the rules of the prompt are never cut, but under `long_prompt: left`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from envace.chat.contract import GRAMMARS
from envace.chat.renderer import Renderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.policy.protocol import Completion, GenerationRequest, Policy
from envace.rollout.few_shot import select_records
from envace.rollout.interfaces import BROKEN, FLOOR, Answered, CallContext, ask, generation_of
from envace.rollout.prompts import PromptSet, RehearsalPrompt
from envace.types import FailureReason, FinishReason, Message, Observation, Role, Source, StopReason, replace

Fitted = tuple[tuple[Message, ...], tuple[int, ...], int]  # chat, ids, token budget


class RehearsalSource:
    """A model in the REHEARSE role: the policy itself, or another one under the name `Source.SIMULATOR`.

    A simulator's generations are not the policy's words, so they are not returned: they must never be trained
    on.
    """

    parallel = True

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        prompt_set: PromptSet,
        method: Method,
        params: RolloutParams,
        name: Source = Source.REHEARSAL,
    ):
        self.policy, self.renderer, self.prompt_set = policy, renderer, prompt_set
        self.method, self.params, self.name = method, params, name
        self.counters: Counter[str] = Counter()  # what was cut off prompts, by section

    async def answer(self, ctx: CallContext) -> Answered:
        """Raises Halt when the model cannot be asked: POLICY_FAILED, or SOURCE_FAILED for a simulator."""
        method, foreign = self.method, self.name is Source.SIMULATOR
        records = select_records(ctx.task.records, method.few_shot, ctx.turn, ctx.call, ctx.task.lent)
        prompt = self.prompt_set.rehearsal(
            ctx, records, show_thoughts=method.show_act_thoughts, check=method.validation == "rehearsal"
        )
        if (fitted := self._fit(prompt, ctx.sampling.max_tokens)) is None:
            return self._broken(FailureReason.PROMPT_TOO_LONG), None
        messages, ids, budget = fitted
        request = GenerationRequest(
            role=Role.REHEARSE,
            messages=messages,
            prompt_ids=ids,
            sampling=replace(ctx.sampling, max_tokens=budget),
            episode_id=ctx.episode_id,
            task_id=ctx.task.id,
            turn=ctx.turn,
            step=ctx.step,
            call=ctx.call,
            call_index=ctx.call_index,
        )
        stop = StopReason.SOURCE_FAILED if foreign else StopReason.POLICY_FAILED
        completion = await ask(self.policy, request, stop)
        observation = self._read(completion)
        invalid = observation.failure is FailureReason.INVALID_CALL  # which is ACT's failure
        return observation, None if foreign else generation_of(
            request, completion, None if invalid else observation.failure
        )

    def _fit(self, prompt: RehearsalPrompt, wanted: int) -> Fitted | None:
        """The prompt with the fewest cuts after which a useful response fits, by bisection: more cuts never
        make it longer. Under `long_prompt: left` its last `prompt_tokens` tokens, whatever they are: the
        rules go first (a server that is asked by chat, not by ids, is shown the whole)."""
        params, left = self.params, self.method.long_prompt == "left"
        context = min(params.context, getattr(self.policy, "context", None) or params.context)
        wanted = min(wanted, params.response_tokens)

        def attempt(cuts: int) -> Fitted | None:
            messages = tuple(prompt.messages(cuts))
            ids = tuple(self.renderer.render(messages))
            if left and (over := len(ids) - params.prompt_tokens) > 0:
                self.counters.update({"cut/prompts": 1, "cut/tokens": over})
                ids = ids[over:]
            budget = min(wanted, context - len(ids))
            fits = len(ids) <= params.prompt_tokens and budget >= min(FLOOR, wanted)
            return (messages, ids, budget) if fits else None

        whole, most = attempt(0), len(prompt.cuts)
        if whole is not None or left or not most:
            return whole
        cuts = bisect_left(range(1, most + 1), True, key=lambda n: attempt(n) is not None) + 1
        if cuts > most:
            return None
        self.counters.update(prompt.cut_counts(cuts))
        return attempt(cuts)

    def _read(self, completion: Completion) -> Observation:
        parsed = GRAMMARS[self.method.grammar].result(completion.text)
        told = self.method.validation == "rehearsal" and isinstance(parsed.value, dict)
        if parsed.failure is None and told and "error_tool_call" in parsed.value:
            failure = FailureReason.INVALID_CALL
            return Observation(content=parsed.value, source=self.name, error=True, failure=failure)
        if parsed.failure is None:
            return Observation(content=parsed.value, source=self.name, error=parsed.error)
        cut = completion.finish is FinishReason.LENGTH
        return self._broken(FailureReason.TRUNCATED if cut else parsed.failure)

    def _broken(self, failure: FailureReason) -> Observation:
        return Observation(content=dict(BROKEN), source=self.name, error=True, failure=failure)
