"""One episode, from task to stop, as one coroutine.

Flows in: a task, a policy, an observation source, a judge and the method's switches. Flows out: an `Episode`
with every generation's exact ids, the transcript, verdicts, reward, stop reason and counters.
Invariant: exactly one stop reason; whatever foreign code does, an Episode comes back. Only cancellation (and
a bug in this package) leaves `run_episode` as an exception. A missing verdict is never a score unless the
method says so (`unscored: zero`), and then the episode still names what it lacks; the time a judge takes is
not the episode's.

Order of a step: budgets, ACT generation, grammar, validation, answers in call order, error budget. A turn
ends with a reply (an empty one too: the user got nothing, and is told nothing) and is then judged.
"""

from __future__ import annotations

import asyncio
import time

from envace.chat.calls import ParsedReply
from envace.chat.contract import GRAMMARS
from envace.chat.renderer import Renderer
from envace.chat.text import foreign, sanitise, split_thinking
from envace.config import RolloutParams
from envace.config.method import Method
from envace.judge.base import Judge
from envace.judge.checklist import episode_reward, turn_reward
from envace.policy.protocol import Completion, GenerationRequest, Policy
from envace.rollout.interfaces import FLOOR, Halt, ObservationSource, ask, generation_of, halting
from envace.rollout.prompts import PromptSet
from envace.rollout.state import COUNTED, FAILED, EpisodeState, Watch
from envace.rollout.tool_calls import MICRO_STEPS, answer_calls, refuse_message
from envace.types import (
    Answer,
    Episode,
    FailureReason,
    FinishReason,
    Memory,
    Message,
    Role,
    Sampling,
    StopReason,
    Task,
    Verdict,
    replace,
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
    """Play one task. Each generation gets a seed of its own, derived from `seed`; a memory reaches ACT's
    system block only, never the transcript a judge reads. The deadline does not run while a judge works. The
    source is closed with the episode.
    """
    head = [prompt_set.act_system() if method.act_text == "set" else None]
    head += [prompt_set.memory_block(memory) if memory and memory.text else None]
    state = EpisodeState(
        task=task,
        policy=policy,
        source=source,
        renderer=renderer,
        judge=judge,
        method=method,
        params=params,
        episode_id=episode_id,
        seed=seed,
        sampling=sampling
        or Sampling(temperature=params.temperature, top_p=params.top_p, max_tokens=params.response_tokens),
        watch=watch or (lambda event: None),
        tools=tuple(foreign(tool) for tool in task.tools),
        head="\n\n".join(part for part in head if part),
        messages=[replace(m, content=foreign(m.content)) for m in task.prefix],
    )
    began = time.monotonic()
    try:
        halt = await _play(state)
    finally:
        if aclose := getattr(source, "aclose", None):
            try:
                await aclose()
            except Exception:  # it has answered all it will be asked: the episode stands
                state.counters["source_not_closed"] += 1
        state.counters.update(getattr(source, "counters", {}))
    unscored = (
        f"{halt.stop.value}: {halt.detail}".removesuffix(": ") if halt.stop in FAILED else state.unscored
    )
    # Under `unscored: zero` the open turn counts 0, and a failed item was a no.
    excluded = unscored and method.unscored == "exclude"
    return Episode(
        id=episode_id,
        task_id=task.id,
        group_id=group_id,
        attempt=attempt,
        seed=seed,
        prompt_set=prompt_set.hash,
        generations=tuple(state.generations),
        messages=tuple(state.messages),
        observations=tuple(state.observations),
        verdicts=tuple(state.verdicts),
        turn_rewards=tuple(state.turn_rewards),
        reward=None if excluded else episode_reward(state.turn_rewards, state.n_turns),
        unscored_reason=unscored or None,
        stop=halt.stop,
        stop_detail=halt.detail,
        counters={name: state.counters[name] for name in COUNTED}
        | {name: n for name, n in state.counters.items() if n},
        real_calls=tuple(state.real_calls),
        seconds=time.monotonic() - began,
    )


async def _play(state: EpisodeState) -> Halt:
    """Run to the stop, then judge the turn it left open, where the method says so. The stop stays what it
    was.

    An open turn in which ACT has said nothing is not judged: it counts 0 as an unreached one does.
    """
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
    said = any(m.role == "assistant" and m.turn == state.turn for m in state.messages)
    wanted = stopped.stop not in FAILED and state.method.unfinished_turn == "judge"
    if wanted and state.turn_open and said:
        try:
            await _judge_turn(state)
        except Halt as halt:
            state.unscored = halt.detail
    return stopped


async def _turns(state: EpisodeState) -> None:
    """Always ends by raising Halt."""
    while True:
        while not await _step(state):
            pass
        required_unmet = await _judge_turn(state)
        if state.turn + 1 >= state.n_turns:
            raise Halt(StopReason.DONE)
        if state.turn + 1 >= state.task.n_turns:
            raise Halt(StopReason.DONE, "the script has fewer user turns than the checklist")
        if required_unmet:
            raise Halt(StopReason.REQUIRED_ITEM, f"turn {state.turn}")
        _check_steps(state, at_turn_end=True)
        state.turn, state.turn_open = state.turn + 1, True
        text = state.task.user_turns[state.turn - 1]
        state.say(Message(role="user", content=foreign(text), turn=state.turn))


async def _step(state: EpisodeState) -> bool:
    """One ACT generation and the answers to its calls. True when it was a reply."""
    _check_steps(state, at_turn_end=False)
    completion = await _act(state)
    method, limit = state.method, state.params.max_parallel
    reply = GRAMMARS[method.grammar].reply(completion.text, thought_calls=method.thought_calls)
    if len(reply.calls) > limit and method.turn_caps == "always":  # void as a whole: none is answered
        detail = f"{len(reply.calls)} calls at once, at most {limit} allowed"
        visible = split_thinking(sanitise(completion.text))[1].strip()
        reply = ParsedReply(reply.thinking, visible, (), FailureReason.TOO_MANY_CALLS, detail)
    empty, failure = reply.failure is FailureReason.EMPTY_OUTPUT, reply.failure
    if completion.finish is FinishReason.LENGTH and not empty:
        failure = FailureReason.TRUNCATED
    if failure is not None:
        state.blame(failure)
        state.counters[f"failure/{failure.value}"] += 1
    if reply.failure is not None and failure is not None and not empty:
        refuse_message(state, reply, failure)
    elif reply.calls:
        await answer_calls(state, reply, completion.text)
    else:
        state.counters["errors"] += empty
        state.say_reply(reply)
        return True
    return False


def _check_steps(state: EpisodeState, at_turn_end: bool) -> None:
    """`turn_caps: turn_end` looks only between user turns, except for the micro-step limit."""
    steps, always = state.counters["act"], state.method.turn_caps == "always"
    over = steps >= state.params.max_steps if always or at_turn_end else state.micro_steps >= MICRO_STEPS
    if over:
        raise Halt(StopReason.STEP_BUDGET, f"{steps} ACT generations")


async def _act(state: EpisodeState) -> Completion:
    """The next ACT generation, recorded. Prompt and output never exceed the context, the policy's own where
    that is smaller, so no server has to reject a request for its length."""
    (view, ids), params = state.prompt(), state.params
    own = getattr(state.policy, "context", None) or params.context
    room, wanted = min(params.context, own) - len(ids), min(state.sampling.max_tokens, params.response_tokens)
    if state.method.context_stop == "reserve":  # a full-length output would have to leave a token over
        fits = room > params.response_tokens
    else:
        fits = room >= min(FLOOR, wanted)
    if not fits:
        raise Halt(StopReason.CONTEXT_BUDGET, f"prompt of {len(ids)} tokens")
    step = state.counters["act"]
    request = GenerationRequest(
        role=Role.ACT,
        messages=view,
        tools=state.tools,
        prompt_ids=ids,
        sampling=state.seeded(Role.ACT, min(wanted, room), step),
        episode_id=state.episode_id,
        task_id=state.task.id,
        turn=state.turn,
        step=step,
    )
    completion = await ask(state.policy, request)
    state.record(generation_of(request, completion))
    return completion


async def _judge_turn(state: EpisodeState) -> bool:
    """Judge the current turn. True when a required item was not met. Raises Halt(JUDGE_FAILED) for an item
    nobody could judge; under `unscored: zero` the turn has then been worth its other items, and one failed
    question is enough, though the item held for another step."""
    state.turn_open = False
    items = state.task.checklist[state.turn] if state.turn < len(state.task.checklist) else ()
    if not items:
        return False
    verdicts = await _verdicts(state)
    state.verdicts += verdicts
    for verdict in verdicts:
        state.watch(verdict)
    score = turn_reward(items, verdicts)
    zero = state.method.unscored == "zero"
    failed = {v.item_id: v.failed or v.reason for v in verdicts if v.failed or v.answer is Answer.UNSCORED}
    lost = {i: failed.get(i, "") for i in (*score.unscored, *(failed if zero else ()))}
    if verdicts and (zero or not lost):
        state.turn_rewards.append(score.passed)
    if lost:
        why = ", ".join(sorted(set(lost.values()) - {""})) or "no verdict"
        raise Halt(StopReason.JUDGE_FAILED, f"{', '.join(lost)}: {why}")
    return score.required_unmet


async def _verdicts(state: EpisodeState) -> list[Verdict]:
    """Ask the judge. The deadline bounds the episode's own work and stands still; a judge has one of its
    own."""
    now, clock = asyncio.get_running_loop().time, state.clock
    ends = clock.when() if clock is not None else None
    left = 0.0 if ends is None else ends - now()
    if clock is not None:
        clock.reschedule(None)
    with halting(StopReason.JUDGE_FAILED):
        verdicts = await state.judge.judge_turn(state.task, state.turn, tuple(state.messages))
    if clock is not None:
        clock.reschedule(now() + left)
    return verdicts
