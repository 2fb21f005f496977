"""A model in the REHEARSE role: it plays the world from the prompt set's text.

Flows in: one call with the conversation before it. Flows out: the response it wrote, and the generation
behind it.
Invariant: a response that breaks the rehearsal contract becomes an error observation with a named failure;
the rules of the prompt are never cut.
"""

from __future__ import annotations

from collections import Counter

from envace.chat.contract import GRAMMARS
from envace.chat.renderer import Renderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.policy.protocol import Completion, GenerationRequest, Policy
from envace.rollout.budget import room
from envace.rollout.few_shot import select_records
from envace.rollout.interfaces import Answered, CallContext, ask, generation_of
from envace.rollout.prompts import PromptSet, RehearsalPrompt
from envace.types import (
    FailureReason,
    FinishReason,
    Message,
    Observation,
    Role,
    Source,
    StopReason,
    replace,
)

BROKEN = {"error": "the tool gave no usable response"}
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
        records = select_records(ctx.task.records, self.method.few_shot, ctx.turn, ctx.call, ctx.task.lent)
        check = self.method.validation == "rehearsal"
        prompt = self.prompt_set.rehearsal(
            ctx, records, show_thoughts=self.method.show_act_thoughts, check=check
        )
        fit = self._cut_left if self.method.long_prompt == "left" else self._cut_sections
        if (fitted := fit(prompt, ctx.sampling.max_tokens)) is None:
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
        foreign = self.name is Source.SIMULATOR
        stop = StopReason.SOURCE_FAILED if foreign else StopReason.POLICY_FAILED
        completion = await ask(self.policy, request, stop)
        observation = self._read(completion)
        return observation, None if foreign else generation_of(request, completion, observation.failure)

    def _room(self, n: int, wanted: int) -> int | None:
        return room(n, wanted, self.params, getattr(self.policy, "context", None))

    def _cut_left(self, prompt: RehearsalPrompt, wanted: int) -> Fitted | None:
        """The last `prompt_tokens` tokens, whatever they are: the rules go first. A server that is asked by
        chat, not by ids, is shown the whole."""
        messages = tuple(prompt.messages())
        whole = tuple(self.renderer.render(messages))
        ids = whole[-self.params.prompt_tokens :]
        if len(ids) < len(whole):
            self.counters.update({"cut/prompts": 1, "cut/tokens": len(whole) - len(ids)})
        budget = self._room(len(ids), wanted)
        return None if budget is None else (messages, ids, budget)

    def _cut_sections(self, prompt: RehearsalPrompt, wanted: int) -> Fitted | None:
        """The prompt with the fewest cuts that fits, by bisection: more cuts never make it longer."""

        def attempt(cuts: int) -> Fitted | None:
            messages = tuple(prompt.messages(cuts))
            ids = tuple(self.renderer.render(messages))
            budget = self._room(len(ids), wanted)
            return None if budget is None else (messages, ids, budget)

        low, high, best = 1, len(prompt.cuts), attempt(0)
        if best is not None or not high or (best := attempt(high)) is None:
            return best
        while low < high:
            middle = (low + high) // 2
            if (found := attempt(middle)) is not None:
                best, high = found, middle
            else:
                low = middle + 1
        self.counters.update(prompt.cut_counts(high))
        return best

    def _read(self, completion: Completion) -> Observation:
        parsed = GRAMMARS[self.method.grammar].result(completion.text)
        if parsed.failure is None:
            return Observation(content=parsed.value, source=self.name, error=parsed.error)
        cut = completion.finish is FinishReason.LENGTH
        return self._broken(FailureReason.TRUNCATED if cut else parsed.failure)

    def _broken(self, failure: FailureReason) -> Observation:
        return Observation(content=dict(BROKEN), source=self.name, error=True, failure=failure)
