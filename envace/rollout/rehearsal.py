"""A model in the REHEARSE role: it plays the world from the prompt set's text.

Flows in: one call with the conversation before it. Flows out: the response it wrote, and the generation behind it.
Invariant: a response that breaks the rehearsal contract becomes an error observation with a named failure; the rules
of the prompt are never cut.
"""

from __future__ import annotations

from collections import Counter

from envace.chat.published import GRAMMARS
from envace.chat.renderer import Renderer
from envace.chat.text import sanitise
from envace.config import RolloutParams
from envace.config.method import Method
from envace.policy.protocol import Completion, GenerationRequest, Policy
from envace.rollout.budget import room
from envace.rollout.interfaces import Answered, CallContext, ask
from envace.rollout.prompts import PromptSet, RehearsalPrompt, select_records
from envace.types import (
    FailureReason,
    FinishReason,
    Generation,
    Message,
    Observation,
    Role,
    Sampling,
    Source,
    StopReason,
    replace,
)

BROKEN = {"error": "the tool gave no usable response"}
Fitted = tuple[tuple[Message, ...], tuple[int, ...], int, int]  # chat, ids, token budget, cuts


class RehearsalSource:
    """A model in the REHEARSE role: the policy itself, or another one under the name `Source.SIMULATOR`.

    A simulator's generations are not the policy's words, so they are not returned: they must never be trained on.
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
        fitted = self._fit(prompt, ctx.sampling.max_tokens)
        if fitted is None:
            return self._broken(FailureReason.PROMPT_TOO_LONG), None
        messages, ids, budget, drop = fitted
        self.counters.update(prompt.cut_counts(drop))
        sampling = replace(ctx.sampling, max_tokens=budget)
        completion = await ask(
            self.policy,
            GenerationRequest(
                role=Role.REHEARSE, messages=messages, prompt_ids=ids, sampling=sampling,
                episode_id=ctx.episode_id, task_id=ctx.task.id, turn=ctx.turn, step=ctx.step,
                call=ctx.call, call_index=ctx.call_index,
            ),
            stop=StopReason.SOURCE_FAILED if self.name is Source.SIMULATOR else StopReason.POLICY_FAILED,
        )  # fmt: skip
        observation = self._read(completion)
        if self.name is Source.SIMULATOR:
            return observation, None
        return observation, _generation(ctx, ids, completion, sampling, observation.failure)

    def _fit(self, prompt: RehearsalPrompt, wanted: int) -> Fitted | None:
        left = self.method.long_prompt == "left"
        return self._cut_left(prompt, wanted) if left else self._cut_sections(prompt, wanted)

    def _cut_left(self, prompt: RehearsalPrompt, wanted: int) -> Fitted | None:
        """The last `prompt_tokens` tokens, whatever they are: the rules go first. A server that is asked by chat, not
        by ids, is shown the whole."""
        messages = tuple(prompt.messages())
        whole = tuple(self.renderer.render(messages))
        ids = whole[-self.params.prompt_tokens :]
        self.counters.update(
            {"cut/prompts": 1, "cut/tokens": len(whole) - len(ids)} if len(ids) < len(whole) else {}
        )
        budget = room(len(ids), wanted, self.params, getattr(self.policy, "context", None))
        return None if budget is None else (messages, ids, budget, 0)

    def _cut_sections(self, prompt: RehearsalPrompt, wanted: int) -> Fitted | None:
        """The prompt with the fewest cuts that fits, by bisection: more cuts never make it longer."""
        context = getattr(self.policy, "context", None)

        def attempt(drop: int) -> Fitted | None:
            messages = tuple(prompt.messages(drop))
            ids = tuple(self.renderer.render(messages))
            budget = room(len(ids), wanted, self.params, context)
            return None if budget is None else (messages, ids, budget, drop)

        if (whole := attempt(0)) is not None:
            return whole
        low, high = 1, len(prompt.cuts)
        best = attempt(high) if high else None
        while best is not None and low < high:
            middle = (low + high) // 2
            if (found := attempt(middle)) is not None:
                best, high = found, middle
            else:
                low = middle + 1
        return best

    def _read(self, completion: Completion) -> Observation:
        parsed = GRAMMARS[self.method.grammar].result(completion.text)
        if parsed.failure is None:
            return Observation(content=parsed.value, source=self.name, error=parsed.error)
        cut = completion.finish is FinishReason.LENGTH
        return self._broken(FailureReason.TRUNCATED if cut else parsed.failure)

    def _broken(self, failure: FailureReason) -> Observation:
        return Observation(content=dict(BROKEN), source=self.name, error=True, failure=failure)


def _generation(
    ctx: CallContext,
    prompt_ids: tuple[int, ...],
    completion: Completion,
    sampling: Sampling,
    failure: FailureReason | None,
) -> Generation:
    return Generation(
        role=Role.REHEARSE, turn=ctx.turn, step=ctx.step, call_index=ctx.call_index, prompt_ids=prompt_ids,
        output_ids=completion.output_ids, logprobs=completion.logprobs, text=sanitise(completion.text),
        sampling=sampling, finish=completion.finish, weight_version=completion.weight_version, failure=failure,
        seconds=completion.seconds,
    )  # fmt: skip
