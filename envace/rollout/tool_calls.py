"""Calls and their answers: validation, the observation source, the error budget.

Invariant: a call that breaks its schema reaches no source (`validation: deterministic`); whatever a source
raises ends the episode as SOURCE_FAILED. The generation that failed carries the blame: ACT's for a call that
is refused before anyone is asked, REHEARSE's for a response that breaks the contract, nobody's for a call the
world refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

from envace.chat.calls import ParsedReply
from envace.chat.text import dumps, sanitise
from envace.chat.validate import validate_call
from envace.rollout.interfaces import Answered, CallContext, Halt, halting
from envace.rollout.state import EpisodeState
from envace.types import FailureReason, Observation, Role, Source, StopReason

MODELS = (Source.REHEARSAL, Source.SIMULATOR)
MICRO_STEPS = 200  # generations of either role that end an episode even when caps wait for the end of a turn


async def answer_calls(state: EpisodeState, reply: ParsedReply, text: str) -> None:
    """Answer every call of a message; results enter the transcript in call order. Raises Halt.

    Past the micro-step limit of `turn_caps: turn_end` no further call is rehearsed, and the episode ends.
    """
    done, asked = state.counters["calls"], len(reply.calls)
    step, wanted = state.counters["act"] - 1, state.sampling.max_tokens
    contexts = [
        CallContext(
            task=state.task,
            call=call,
            history=tuple(state.messages),
            act_reply=sanitise(text),
            turn=state.turn,
            step=step,
            call_index=i,
            number=done + i + 1,
            episode_id=state.episode_id,
            sampling=state.seeded(Role.REHEARSE, wanted, step, i),
            ledger=state.real_calls,
        )
        for i, call in enumerate(reply.calls)
    ]
    state.say_reply(reply)
    if state.method.turn_caps == "always" and done + asked > state.params.max_calls:
        raise Halt(StopReason.CALL_BUDGET, f"{done} calls, {asked} more asked")
    state.counters["calls"] += asked
    if state.source.name is Source.REHEARSAL and state.method.turn_caps == "turn_end":
        contexts = contexts[: MICRO_STEPS - state.micro_steps]
    if state.source.parallel:
        answers = await _together([_answer(state, ctx) for ctx in contexts])
    else:
        answers = [await _answer(state, ctx) for ctx in contexts]
    for call, (observation, generation) in zip(reply.calls, answers):
        invalid = observation.source is Source.VALIDATOR or observation.failure is FailureReason.INVALID_CALL
        if invalid and observation.failure is not None:
            state.blame(observation.failure)
        if generation is not None:
            state.record(generation)
        state.observe(call.name, observation)
    _check_errors(state, [observation for observation, _ in answers])
    if len(answers) < asked:
        raise Halt(StopReason.STEP_BUDGET, f"{state.micro_steps} generations, {asked} calls at once")


def refuse_message(state: EpisodeState, reply: ParsedReply, failure: FailureReason) -> None:
    """A message whose calls cannot be read: shown as written, answered by one error. Raises Halt."""
    state.say_reply(reply)
    detail = "the call was cut off" if failure is FailureReason.TRUNCATED else reply.detail
    # Its failure is counted with the generation, so the observation is not counted again.
    state.observe("", _refusal(failure, detail), count=False)
    _check_errors(state, state.observations[-1:])


async def _answer(state: EpisodeState, ctx: CallContext) -> Answered:
    """Only a model can be asked about arguments without names."""
    failure, detail = None, ""
    with halting(StopReason.SOURCE_FAILED):
        if state.method.validation == "deterministic":
            failure, detail = validate_call(ctx.call, state.task.tools)
        elif not isinstance(ctx.call.arguments, dict) and state.source.name not in MODELS:
            failure, detail = FailureReason.NO_ARGUMENTS, "arguments must be an object"
        if failure is not None:
            return _refusal(failure, detail), None
        observation, generation = await state.source.answer(ctx)
        dumps(observation.content)  # a world that returns no JSON has failed
        return observation, generation


def _refusal(failure: FailureReason, detail: str) -> Observation:
    return Observation(content={"error": detail}, source=Source.VALIDATOR, error=True, failure=failure)


def _check_errors(state: EpisodeState, observations: Sequence[Observation]) -> None:
    """Under `on_tool_error: terminate` as the published code: an invalid call, or a response that broke its
    form, ends the episode; a refusal of whoever answers is a response, and errors are not counted."""
    if state.method.on_tool_error == "terminate":
        broken = [o.failure for o in observations if o.failure not in (None, FailureReason.NO_RECORD)]
        if broken and broken[0] is not None:
            raise Halt(StopReason.TOOL_ERROR, broken[0].value)
    elif any(o.error for o in observations) and state.counters["errors"] > state.params.max_errors:
        raise Halt(StopReason.ERROR_BUDGET, f"{state.counters['errors']} errors")


async def _together(answers: Sequence[Coroutine[None, None, Answered]]) -> list[Answered]:
    """All answers at the same time, in order; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
