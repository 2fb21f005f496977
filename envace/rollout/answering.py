"""Calls and their answers: validation, the observation source, the error budget.

Flows in: the calls of one ACT message. Flows out: one observation a call in the transcript, in call order.
Invariant: a call that breaks its schema reaches no source (`validation: deterministic`); whatever a source raises
ends the episode as SOURCE_FAILED. The generation that failed carries the blame: ACT's for a call that is refused
before anyone is asked, REHEARSE's for a response that breaks the contract, nobody's for a call the world refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from envace.chat.calls import ParsedReply
from envace.chat.text import dumps, sanitise
from envace.chat.validate import Refusal, validate_call
from envace.rollout.budget import calls_exhausted, micro_left, seeded
from envace.rollout.interfaces import Answered, CallContext, Halt, halting
from envace.rollout.state import State
from envace.types import FailureReason, Message, Observation, Role, Source, StopReason, ToolCall

MODELS = (Source.REHEARSAL, Source.SIMULATOR)


async def answer_all(state: State, reply: ParsedReply, text: str) -> None:
    """Answered every call of a message; results enter the transcript in call order. Raises Halt."""
    history = tuple(state.messages)
    state.say_reply(reply)
    done = state.counters["calls"]
    if stop := calls_exhausted(state.method, state.params, done, len(reply.calls), False):
        raise Halt(stop, f"{done} calls, {len(reply.calls)} more asked")
    state.counters["calls"] += len(reply.calls)
    contexts = [_context(state, call, i, done + i + 1, history, text) for i, call in enumerate(reply.calls)]
    contexts = contexts[: _answerable(state, len(contexts))]
    if getattr(state.source, "parallel", False):
        answers = await _together([_answer(state, ctx) for ctx in contexts])
    else:
        answers = [await _answer(state, ctx) for ctx in contexts]
    for call, (observation, generation) in zip(reply.calls, answers):
        if observation.source is Source.VALIDATOR and observation.failure is not None:
            state.blame(observation.failure)
        if generation is not None:
            state.record(generation)
        state.observe(call.name, observation)
    _check_errors(state, [observation for observation, _ in answers])
    if len(answers) < len(reply.calls):
        raise Halt(
            StopReason.STEP_BUDGET, f"{state.micro_steps} generations, {len(reply.calls)} calls at once"
        )


def refuse_message(state: State, reply: ParsedReply, failure: FailureReason) -> None:
    """A message whose calls cannot be read: shown as written, answered by one error. Raises Halt."""
    state.say_reply(reply)
    detail = "the call was cut off" if failure is FailureReason.TRUNCATED else reply.detail
    # Its failure is counted with the generation, so the observation is not counted again.
    state.observe("", _refusal(failure, detail), count=False)
    _check_errors(state, [state.observations[-1]])


async def close(state: State) -> None:
    """Let go of the source and take over what it counted. A source that cannot be closed is counted, too."""
    if aclose := getattr(state.source, "aclose", None):
        try:
            await aclose()
        except Exception:  # it has answered all it will be asked: the episode stands
            state.counters["source_not_closed"] += 1
    state.counters.update(getattr(state.source, "counters", {}))


def _context(
    state: State, call: ToolCall, index: int, number: int, history: tuple[Message, ...], text: str
) -> CallContext:
    step = state.counters["act"] - 1
    wanted = state.sampling.max_tokens
    return CallContext(
        task=state.task, call=call, history=history, act_reply=sanitise(text), turn=state.turn, step=step,
        call_index=index, number=number, episode_id=state.episode_id,
        sampling=seeded(state.sampling, wanted, state.seed, Role.REHEARSE, step, index), ledger=state.real_calls,
    )  # fmt: skip


def _answerable(state: State, calls: int) -> int:
    """How many calls of a message the micro-step limit lets the policy rehearse."""
    if state.source.name is not Source.REHEARSAL:
        return calls
    return int(min(calls, micro_left(state.method, state.micro_steps)))


async def _answer(state: State, ctx: CallContext) -> Answered:
    with halting(StopReason.SOURCE_FAILED):
        failure, detail = _invalid(state, ctx.call)
        if failure is not None:
            return _refusal(failure, detail), None
        observation, generation = await state.source.answer(ctx)
        dumps(observation.content)  # a world that returns no JSON has failed
        return observation, generation


def _invalid(state: State, call: ToolCall) -> Refusal:
    """Why a call is refused before anyone is asked. Only a model can be asked about arguments without names."""
    if state.method.validation == "deterministic":
        return validate_call(call, state.task.tools)
    if not isinstance(call.arguments, dict) and state.source.name not in MODELS:
        return FailureReason.NO_ARGUMENTS, "arguments must be an object"
    return None, ""


def _check_errors(state: State, observations: Sequence[Observation]) -> None:
    if not any(o.error for o in observations):
        return
    if state.method.on_tool_error == "terminate":
        failures = [o.failure.value if o.failure else "refused" for o in observations if o.error]
        raise Halt(StopReason.TOOL_ERROR, failures[0])
    if state.counters["errors"] > state.params.max_errors:
        raise Halt(StopReason.ERROR_BUDGET, f"{state.counters['errors']} errors")


def _refusal(failure: FailureReason, detail: str) -> Observation:
    return Observation(content={"error": detail}, source=Source.VALIDATOR, error=True, failure=failure)


async def _together(answers: Sequence[Any]) -> list[Answered]:
    """All answers at the same time, in order; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
