"""One episode, from task to stop, as one coroutine.

Flows in: a task, a policy, an observation source, a judge and the method's switches. Flows out: an `Episode`
with every generation's exact ids, the transcript, verdicts, reward, stop reason and counters.
Invariant: exactly one stop reason; whatever foreign code does, an Episode comes back. Only cancellation (and a
bug in this package) leaves `run_episode` as an exception.

Order of a step: budgets, ACT generation, grammar, validation, answers in call order, error budget. A turn ends
with a reply (an empty one too: the user got nothing, and is told nothing) and is then judged.
"""

from __future__ import annotations

import asyncio
import time

from envace.chat.calls import ParsedReply
from envace.chat.published import GRAMMARS
from envace.chat.renderer import Renderer
from envace.chat.text import sanitise, split_thinking
from envace.config import RolloutParams
from envace.config.method import Method
from envace.judge.base import Judge
from envace.policy.protocol import Completion, GenerationRequest, Policy
from envace.rollout.answering import answer_all, close, refuse_message
from envace.rollout.budget import act_room, calls_exhausted, exhausted, seeded
from envace.rollout.interfaces import Halt, ObservationSource, ask
from envace.rollout.judging import judge_turn, judge_unfinished, score
from envace.rollout.prompts import PromptSet
from envace.rollout.state import State, Watch
from envace.types import (
    Episode,
    FailureReason,
    FinishReason,
    Generation,
    Memory,
    Message,
    Role,
    Sampling,
    StopReason,
    Task,
)


async def run_episode(
    task: Task,
    *,
    policy: Policy,
    source: ObservationSource,
    renderer: Renderer,
    judge: Judge,
    method: Method,
    params: RolloutParams,
    episode_id: str,
    group_id: str,
    seed: int,
    attempt: int = 0,
    prompt_set: PromptSet,
    sampling: Sampling | None = None,
    memory: Memory | None = None,
    watch: Watch | None = None,
) -> Episode:
    """Play one task. Each generation gets a seed of its own, derived from `seed`; a memory reaches ACT's system
    block only, never the transcript a judge reads. The deadline does not run while a judge works. The source is
    closed with the episode.
    """
    sampling = sampling or Sampling(
        temperature=params.temperature, top_p=params.top_p, max_tokens=params.response_tokens
    )
    state = State(
        task, policy, source, renderer, judge, method, params, episode_id, seed, sampling, watch,
        head=_head(prompt_set, method, memory), messages=list(task.prefix),
    )  # fmt: skip
    began = time.monotonic()
    try:
        halt = await _play(state)
    finally:
        await close(state)
    reward, unscored = score(state, halt)
    return Episode(
        id=episode_id, task_id=task.id, group_id=group_id, attempt=attempt, seed=seed, prompt_set=prompt_set.hash,
        generations=tuple(state.generations), messages=tuple(state.messages), observations=tuple(state.observations),
        verdicts=tuple(state.verdicts), turn_rewards=tuple(state.turn_rewards), reward=reward,
        unscored_reason=unscored, stop=halt.stop, stop_detail=halt.detail, counters=state.counted(),
        real_calls=tuple(state.real_calls), seconds=time.monotonic() - began,
    )  # fmt: skip


async def _play(state: State) -> Halt:
    """Run to the stop, then judge the turn it left open."""
    try:
        async with asyncio.timeout(state.params.deadline_s) as state.clock:
            await _turns(state)
    except Halt as halt:
        stopped = halt
    except TimeoutError:
        if state.clock is None or not state.clock.expired():
            raise
        stopped = Halt(StopReason.DEADLINE, f"after {state.params.deadline_s:g} s")
    state.clock = None
    await judge_unfinished(state, stopped)
    return stopped


async def _turns(state: State) -> None:
    """Always ends by raising Halt."""
    while True:
        while not await _step(state):
            pass
        required_unmet = await judge_turn(state)
        if state.turn + 1 >= state.n_turns:
            raise Halt(StopReason.DONE)
        if state.turn + 1 >= state.task.n_turns:
            raise Halt(StopReason.DONE, "the script has fewer user turns than the checklist")
        if required_unmet:
            raise Halt(StopReason.REQUIRED_ITEM, f"turn {state.turn}")
        _check_caps(state, at_turn_end=True)
        state.turn, state.turn_open = state.turn + 1, True
        text = state.task.user_turns[state.turn - 1]
        state.say(Message(role="user", content=text, turn=state.turn))


async def _step(state: State) -> bool:
    """One ACT generation and the answers to its calls. True when it was a reply."""
    _check_caps(state, at_turn_end=False)
    completion = await _act(state)
    reply, failure = _read(state, completion)
    if failure is not None:
        state.counters[f"failure/{failure.value}"] += 1
    if reply.failure not in (None, FailureReason.EMPTY_OUTPUT):
        refuse_message(state, reply, failure or reply.failure)
        return False
    if not reply.calls:
        state.counters["errors"] += reply.failure is FailureReason.EMPTY_OUTPUT
        state.say_reply(reply)
        return True
    await answer_all(state, reply, completion.text)
    return False


def _check_caps(state: State, at_turn_end: bool) -> None:
    steps, calls = state.counters["act"], state.counters["calls"]
    if stop := exhausted(state.method, state.params, steps, state.micro_steps, at_turn_end):
        raise Halt(stop, f"{steps} ACT generations")
    if at_turn_end and (stop := calls_exhausted(state.method, state.params, calls, 0, True)):
        raise Halt(stop, f"{calls} calls")


async def _act(state: State) -> Completion:
    view, ids = state.prompt()
    context = getattr(state.policy, "context", None)
    budget = act_room(state.method, len(ids), state.sampling.max_tokens, state.params, context)
    if budget is None:
        raise Halt(StopReason.CONTEXT_BUDGET, f"prompt of {len(ids)} tokens")
    step = state.counters["act"]
    sampling = seeded(state.sampling, budget, state.seed, Role.ACT, step)
    completion = await ask(
        state.policy,
        GenerationRequest(
            role=Role.ACT, messages=view, tools=state.task.tools, prompt_ids=ids, sampling=sampling,
            episode_id=state.episode_id, task_id=state.task.id, turn=state.turn, step=step,
        ),
    )  # fmt: skip
    state.record(Generation(
        role=Role.ACT, turn=state.turn, step=step, prompt_ids=ids, output_ids=completion.output_ids,
        logprobs=completion.logprobs, text=sanitise(completion.text), sampling=sampling,
        finish=completion.finish, weight_version=completion.weight_version, seconds=completion.seconds,
    ))  # fmt: skip
    return completion


def _read(state: State, completion: Completion) -> tuple[ParsedReply, FailureReason | None]:
    """Parse the newest ACT generation and stamp its failure on it."""
    read = GRAMMARS[state.method.grammar].reply
    reply = read(completion.text, thought_calls=state.method.thought_calls)
    if len(reply.calls) > state.params.max_parallel and state.method.turn_caps == "always":
        reply = _too_many(reply, completion.text, state.params.max_parallel)
    failure = reply.failure
    if completion.finish is FinishReason.LENGTH and failure is not FailureReason.EMPTY_OUTPUT:
        failure = FailureReason.TRUNCATED
    if failure is not None:
        state.blame(failure)
    return reply, failure


def _too_many(reply: ParsedReply, text: str, limit: int) -> ParsedReply:
    """A message over the cap is void as a whole: none of its calls is answered."""
    detail = f"{len(reply.calls)} calls at once, at most {limit} allowed"
    visible = split_thinking(sanitise(text))[1].strip()
    return ParsedReply(reply.thinking, visible, (), FailureReason.TOO_MANY_CALLS, detail)


def _head(prompt_set: PromptSet, method: Method, memory: Memory | None) -> str:
    """System text on top of the task's own: the prompt set's, then the memory's one block."""
    parts = [prompt_set.act_system() if method.act_text == "set" else None]
    parts += [prompt_set.memory_block(memory) if memory and memory.text else None]
    return "\n\n".join(p for p in parts if p)
