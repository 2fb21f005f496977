"""Who answers ACT's calls: one protocol, three kinds of source.

Flows in: `CallContext`, one call with the conversation before it. Flows out: an `Observation`, and the
`Generation` behind it when the policy wrote it.
Invariant: a response that breaks the rehearsal contract becomes an error observation with a named failure; a
world is asked one call at a time, in call order.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol

from envace.chat.contract import is_error, parse_result
from envace.chat.renderer import Renderer
from envace.chat.text import sanitise
from envace.errors import DataError
from envace.method import Method
from envace.params import RolloutParams
from envace.rollout.budget import room
from envace.rollout.policy import Completion, GenerationRequest, Policy, ask
from envace.rollout.prompts import PromptSet, RehearsalPrompt, load_prompt_set, matches, select_records
from envace.types import (
    FailureReason,
    FinishReason,
    Generation,
    Message,
    Observation,
    Record,
    Role,
    Sampling,
    Source,
    Task,
    ToolCall,
    replace,
)
from envace.worlds import make_world

BROKEN = {"error": "the tool gave no usable response"}
NO_RECORD = {"error": "no recorded response"}
Answer = tuple[Observation, Generation | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    task: Task
    call: ToolCall
    history: tuple[Message, ...]  # before the ACT message that makes the call
    act_reply: str  # that message as ACT wrote it, thinking included
    turn: int
    step: int
    call_index: int = 0
    episode_id: str = ""
    sampling: Sampling = Sampling()


class ObservationSource(Protocol):
    """`parallel`: whether the calls of one ACT message may be answered at the same time."""

    name: Source
    parallel: bool

    async def answer(self, ctx: CallContext) -> Answer: ...


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

    async def answer(self, ctx: CallContext) -> Answer:
        """Raises Halt(POLICY_FAILED) when the model cannot be asked."""
        records = select_records(ctx.task.records, self.method.few_shot, ctx.turn, ctx.call)
        check = self.method.validation == "rehearsal"
        prompt = self.prompt_set.rehearsal(
            ctx, records, show_thoughts=self.method.show_act_thoughts, check=check
        )
        fitted = self._fit(prompt, ctx.sampling.max_tokens)
        if fitted is None:
            return self._broken(FailureReason.PROMPT_TOO_LONG), None
        messages, ids, budget = fitted
        sampling = replace(ctx.sampling, max_tokens=budget)
        completion = await ask(
            self.policy,
            GenerationRequest(
                role=Role.REHEARSE, messages=messages, prompt_ids=ids, sampling=sampling,
                episode_id=ctx.episode_id, task_id=ctx.task.id, turn=ctx.turn, step=ctx.step,
                call=ctx.call, call_index=ctx.call_index,
            ),
        )  # fmt: skip
        observation = self._read(completion)
        if self.name is Source.SIMULATOR:
            return observation, None
        return observation, _generation(ctx, ids, completion, sampling, observation.failure)

    def _fit(
        self, prompt: RehearsalPrompt, wanted: int
    ) -> tuple[tuple[Message, ...], tuple[int, ...], int] | None:
        """The prompt with the fewest cuts that fits, by bisection: more cuts never make it longer."""
        context = getattr(self.policy, "context", None)

        def attempt(drop: int) -> tuple[tuple[Message, ...], tuple[int, ...], int] | None:
            messages = tuple(prompt.messages(drop))
            ids = tuple(self.renderer.render(messages))
            budget = room(len(ids), wanted, self.params, context)
            return None if budget is None else (messages, ids, budget)

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
        parsed = parse_result(completion.text)
        if parsed.failure is None:
            return Observation(content=parsed.value, source=self.name, error=parsed.error)
        cut = completion.finish is FinishReason.LENGTH
        return self._broken(FailureReason.TRUNCATED if cut else parsed.failure)

    def _broken(self, failure: FailureReason) -> Observation:
        return Observation(content=dict(BROKEN), source=self.name, error=True, failure=failure)


class EnvironmentSource:
    """An executable world, one per episode. `world.call(ToolCall)` returns an Observation, or awaits to one."""

    name = Source.ENVIRONMENT
    parallel = False

    def __init__(self, world: Any):
        self.world = world

    async def answer(self, ctx: CallContext) -> Answer:
        observation = self.world.call(ctx.call)
        if inspect.isawaitable(observation):
            observation = await observation
        return observation, None


class RecordedSource:
    """Results recorded for the task. Of several records of one call, the latest up to this turn answers."""

    name = Source.RECORDED
    parallel = True

    def __init__(self, task: Task):
        self.task = task

    async def answer(self, ctx: CallContext) -> Answer:
        record = self._find(ctx)
        if record is None:
            failure = FailureReason.NO_RECORD
            return Observation(content=dict(NO_RECORD), source=self.name, error=True, failure=failure), None
        return Observation(content=record.result, source=self.name, error=is_error(record.result)), None

    def _find(self, ctx: CallContext) -> Record | None:
        found = [r for r in self.task.records if matches(r, ctx.call)]
        return next((r for r in reversed(found) if r.turn <= ctx.turn), found[0] if found else None)


def make_source(
    task: Task, method: Method, policy: Policy, renderer: Renderer, params: RolloutParams
) -> ObservationSource:
    """The source `method.source` names, for one episode. Raises DataError when the task has none of that kind."""
    if method.source == "rehearse":
        return RehearsalSource(policy, renderer, load_prompt_set(params.prompt_set), method, params)
    if method.source == "recorded":
        return RecordedSource(task)
    if task.world is None:
        raise DataError(f"task {task.id} has no executable world; use the source rehearse or recorded")
    return EnvironmentSource(make_world(task))


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
    )  # fmt: skip
