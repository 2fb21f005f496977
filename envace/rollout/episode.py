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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envace.chat.calls import ParsedReply, parse_assistant
from envace.chat.renderer import Renderer
from envace.chat.text import dumps, sanitise, split_thinking
from envace.chat.validate import validate_call
from envace.judge.base import Judge
from envace.judge.checklist import episode_reward, turn_reward
from envace.method import Method
from envace.params import RolloutParams
from envace.rollout.budget import calls_exhausted, exhausted, room, seeded
from envace.rollout.halt import Halt, halting
from envace.rollout.policy import Completion, GenerationRequest, Policy, ask
from envace.rollout.prompts import PromptSet
from envace.rollout.sources import Answer, CallContext, ObservationSource
from envace.types import (
    Episode,
    FailureReason,
    FinishReason,
    Generation,
    Memory,
    Message,
    Observation,
    Role,
    Sampling,
    Source,
    StopReason,
    Task,
    ToolCall,
    Verdict,
    replace,
)

Watch = Callable[[Any], None]  # called with every Message, Observation and Verdict as it happens

FAILED = {StopReason.JUDGE_FAILED, StopReason.POLICY_FAILED, StopReason.SOURCE_FAILED}
COUNTED = ("act", "rehearse", "calls", "errors", "tokens_act", "tokens_rehearse")


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
    block only, never the transcript a judge reads. The deadline does not run while a judge works.
    """
    sampling = sampling or Sampling(
        temperature=params.temperature, top_p=params.top_p, max_tokens=params.response_tokens
    )
    run = _Run(
        task, policy, source, renderer, judge, method, params, episode_id, seed, sampling, watch,
        head=_head(task, prompt_set, memory), messages=list(task.prefix),
    )  # fmt: skip
    began = time.monotonic()
    halt = await run.play()
    score = run.score(halt)
    return Episode(
        id=episode_id, task_id=task.id, group_id=group_id, attempt=attempt, seed=seed, prompt_set=prompt_set.hash,
        generations=tuple(run.generations), messages=tuple(run.messages), observations=tuple(run.observations),
        verdicts=tuple(run.verdicts), turn_rewards=tuple(run.turn_rewards), reward=score[0],
        unscored_reason=score[1], stop=halt.stop, stop_detail=halt.detail, counters=run.counted(),
        real_calls=tuple(run.real_calls), seconds=time.monotonic() - began,
    )  # fmt: skip


@dataclass(slots=True)
class _Run:
    """The growing state of one episode."""

    task: Task
    policy: Policy
    source: ObservationSource
    renderer: Renderer
    judge: Judge
    method: Method
    params: RolloutParams
    episode_id: str
    seed: int
    sampling: Sampling
    watch: Watch | None
    head: str
    messages: list[Message]
    generations: list[Generation] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    real_calls: list[ToolCall] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    turn: int = 0
    turn_open: bool = True  # False once the current turn has been judged, or its judge has failed
    unscored: str = ""
    clock: asyncio.Timeout | None = None

    # --- flow ---------------------------------------------------------------------------------------------

    async def play(self) -> Halt:
        """Run to the stop, then judge the turn it left open when the method says so."""
        try:
            async with asyncio.timeout(self.params.deadline_s) as self.clock:
                await self._turns()
        except Halt as halt:
            stopped = halt
        except TimeoutError:
            if self.clock is None or not self.clock.expired():
                raise
            stopped = Halt(StopReason.DEADLINE, f"after {self.params.deadline_s:g} s")
        self.clock = None
        if (
            stopped.stop not in FAILED
            and self.method.unfinished_turn == "judge"
            and self._something_to_judge()
        ):
            try:
                await self._judge()
            except Halt as halt:  # the stop stays what it was; the episode is unscored
                self.unscored = self.unscored or halt.detail
        return stopped

    async def _turns(self) -> None:
        """Always ends by raising Halt."""
        n_turns = self._n_turns()
        while True:
            while not await self._step():
                pass
            required_unmet = await self._judge()
            if self.turn + 1 >= n_turns:
                raise Halt(StopReason.DONE)
            if self.turn + 1 >= self.task.n_turns:
                raise Halt(StopReason.DONE, "the script has fewer user turns than the checklist")
            if required_unmet:
                raise Halt(StopReason.REQUIRED_ITEM, f"turn {self.turn}")
            self._check_caps(at_turn_end=True)
            self.turn, self.turn_open = self.turn + 1, True
            text = self.task.user_turns[self.turn - 1]
            self._say(Message(role="user", content=text, turn=self.turn))

    async def _step(self) -> bool:
        """One ACT generation and the answers to its calls. True when it was a reply."""
        self._check_caps(at_turn_end=False)
        completion = await self._act()
        reply, failure = self._read(completion)
        if failure is not None:
            self.counters[f"failure/{failure.value}"] += 1
        if reply.failure not in (None, FailureReason.EMPTY_OUTPUT):
            self._refuse_message(reply, failure or reply.failure)
            return False
        if not reply.calls:
            self.counters["errors"] += reply.failure is FailureReason.EMPTY_OUTPUT
            self._say_reply(reply)
            return True
        await self._answer_all(reply, completion.text)
        return False

    def _check_caps(self, at_turn_end: bool) -> None:
        steps, calls = self.counters["act"], self.counters["calls"]
        if stop := exhausted(self.method, self.params, steps, at_turn_end):
            raise Halt(stop, f"{steps} ACT generations")
        if at_turn_end and (stop := calls_exhausted(self.method, self.params, calls, 0, True)):
            raise Halt(stop, f"{calls} calls")

    def _n_turns(self) -> int:
        return len(self.task.checklist) or self.task.n_turns

    # --- ACT ----------------------------------------------------------------------------------------------

    async def _act(self) -> Completion:
        view = self._view()
        ids = tuple(self.renderer.render(view, self.task.tools))
        context = getattr(self.policy, "context", None)
        budget = room(len(ids), self.sampling.max_tokens, self.params, context)
        if budget is None:
            raise Halt(StopReason.CONTEXT_BUDGET, f"prompt of {len(ids)} tokens")
        step = self.counters["act"]
        sampling = seeded(self.sampling, budget, self.seed, Role.ACT, step)
        completion = await ask(
            self.policy,
            GenerationRequest(
                role=Role.ACT, messages=view, tools=self.task.tools, prompt_ids=ids, sampling=sampling,
                episode_id=self.episode_id, task_id=self.task.id, turn=self.turn, step=step,
            ),
        )  # fmt: skip
        self._record(Generation(
            role=Role.ACT, turn=self.turn, step=step, prompt_ids=ids, output_ids=completion.output_ids,
            logprobs=completion.logprobs, text=sanitise(completion.text), sampling=sampling,
            finish=completion.finish, weight_version=completion.weight_version,
        ))  # fmt: skip
        return completion

    def _view(self) -> tuple[Message, ...]:
        """The transcript as ACT sees it: the extra system text, if any, goes into the first system message."""
        if not self.head:
            return tuple(self.messages)
        if self.messages and self.messages[0].role == "system":
            first = replace(self.messages[0], content=f"{self.messages[0].content}\n\n{self.head}")
            return (first, *self.messages[1:])
        return (Message(role="system", content=self.head), *self.messages)

    def _read(self, completion: Completion) -> tuple[ParsedReply, FailureReason | None]:
        """Parse the newest ACT generation and stamp its failure on it."""
        reply = parse_assistant(completion.text, thought_calls=self.method.thought_calls)
        if len(reply.calls) > self.params.max_parallel and self.method.turn_caps == "always":
            reply = _too_many(reply, completion.text, self.params.max_parallel)
        failure = reply.failure
        if completion.finish is FinishReason.LENGTH and failure is not FailureReason.EMPTY_OUTPUT:
            failure = FailureReason.TRUNCATED
        if failure is not None:
            self.generations[-1] = replace(self.generations[-1], failure=failure)
        return reply, failure

    def _say_reply(self, reply: ParsedReply) -> None:
        self._say(Message(
            role="assistant", content=reply.content, thinking=reply.thinking, calls=reply.calls, turn=self.turn
        ))  # fmt: skip

    def _refuse_message(self, reply: ParsedReply, failure: FailureReason) -> None:
        """A message whose calls cannot be read: shown as written, answered by one error."""
        self._say_reply(reply)
        detail = "the call was cut off" if failure is FailureReason.TRUNCATED else reply.detail
        # Its failure is counted with the generation, so the observation is not counted again.
        self._observe("", _refusal(failure, detail), count=False)
        self._check_errors([self.observations[-1]])

    # --- answers ------------------------------------------------------------------------------------------

    async def _answer_all(self, reply: ParsedReply, text: str) -> None:
        """Answer every call of a message; results enter the transcript in call order."""
        history = tuple(self.messages)
        self._say_reply(reply)
        done = self.counters["calls"]
        if stop := calls_exhausted(self.method, self.params, done, len(reply.calls), False):
            raise Halt(stop, f"{done} calls, {len(reply.calls)} more asked")
        self.counters["calls"] += len(reply.calls)
        contexts = [self._context(call, i, history, text) for i, call in enumerate(reply.calls)]
        if getattr(self.source, "parallel", False):
            answers = await _together([self._answer(ctx) for ctx in contexts])
        else:
            answers = [await self._answer(ctx) for ctx in contexts]
        for call, (observation, generation) in zip(reply.calls, answers):
            if generation is not None:
                self._record(generation)
            self._observe(call.name, observation)
        self._check_errors([observation for observation, _ in answers])

    def _context(self, call: ToolCall, index: int, history: tuple[Message, ...], text: str) -> CallContext:
        step = self.counters["act"] - 1
        wanted = self.sampling.max_tokens
        return CallContext(
            task=self.task, call=call, history=history, act_reply=sanitise(text), turn=self.turn, step=step,
            call_index=index, episode_id=self.episode_id,
            sampling=seeded(self.sampling, wanted, self.seed, Role.REHEARSE, step, index),
        )  # fmt: skip

    async def _answer(self, ctx: CallContext) -> Answer:
        with halting(StopReason.SOURCE_FAILED):
            if self.method.validation == "deterministic":
                failure, detail = validate_call(ctx.call, self.task.tools)
                if failure is not None:
                    return _refusal(failure, detail), None
            observation, generation = await self.source.answer(ctx)
            if observation.source is Source.ENVIRONMENT:
                self.real_calls.append(ctx.call)
            dumps(observation.content)  # a world that returns no JSON has failed
            return observation, generation

    def _observe(self, name: str, observation: Observation, count: bool = True) -> None:
        self.observations.append(observation)
        self.counters["errors"] += observation.error
        if count and observation.failure is not None:
            self.counters[f"failure/{observation.failure.value}"] += 1
        self._say(Message(role="tool", content=dumps(observation.content), name=name, turn=self.turn))
        if self.watch:
            self.watch(observation)

    def _check_errors(self, observations: Sequence[Observation]) -> None:
        if not any(o.error for o in observations):
            return
        if self.method.on_tool_error == "terminate":
            failures = [o.failure.value if o.failure else "refused" for o in observations if o.error]
            raise Halt(StopReason.TOOL_ERROR, failures[0])
        if self.counters["errors"] > self.params.max_errors:
            raise Halt(StopReason.ERROR_BUDGET, f"{self.counters['errors']} errors")

    # --- judging ------------------------------------------------------------------------------------------

    def _something_to_judge(self) -> bool:
        """An open turn in which ACT has said nothing is not judged: it counts 0 as an unreached one does."""
        return self.turn_open and any(m.role == "assistant" and m.turn == self.turn for m in self.messages)

    async def _judge(self) -> bool:
        """Judge the current turn. True when a required item was not met. Raises Halt(JUDGE_FAILED)."""
        self.turn_open = False
        items = self.task.checklist[self.turn] if self.turn < len(self.task.checklist) else ()
        if not items:
            return False
        left = self._pause_clock()
        with halting(StopReason.JUDGE_FAILED):
            verdicts = await self.judge.judge_turn(self.task, self.turn, tuple(self.messages))
        self._resume_clock(left)
        self.verdicts += verdicts
        for verdict in verdicts if self.watch else ():
            self.watch(verdict)
        score = turn_reward(items, verdicts)
        if score.reward is None:
            why = {v.reason for v in verdicts if v.item_id in score.unscored and v.reason}
            detail = f"{', '.join(score.unscored)}: {', '.join(sorted(why)) or 'no verdict'}"
            raise Halt(StopReason.JUDGE_FAILED, detail)
        self.turn_rewards.append(score.reward)
        return score.required_unmet

    def _pause_clock(self) -> float:
        """The deadline bounds the episode's own work; a judge has a deadline of its own."""
        if self.clock is None or (when := self.clock.when()) is None:
            return 0.0
        self.clock.reschedule(None)
        return when - asyncio.get_running_loop().time()

    def _resume_clock(self, left: float) -> None:
        if self.clock is not None:
            self.clock.reschedule(asyncio.get_running_loop().time() + left)

    def score(self, halt: Halt) -> tuple[float | None, str | None]:
        """(reward, why it is unscored). The method decides whether an unscored episode is worth 0 or nothing."""
        reason = self.unscored
        if halt.stop in FAILED:
            reason = f"{halt.stop.value}: {halt.detail}" if halt.detail else halt.stop.value
        if reason:
            return (0.0 if self.method.unscored == "zero" else None), reason
        return episode_reward(self.turn_rewards, self._n_turns()), None

    # --- bookkeeping --------------------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        self.messages.append(message)
        if self.watch:
            self.watch(message)

    def _record(self, generation: Generation) -> None:
        self.generations.append(generation)
        self.counters[generation.role.value] += 1
        self.counters[f"tokens_{generation.role.value}"] += len(generation.output_ids)

    def counted(self) -> dict[str, int]:
        return {
            **{name: self.counters[name] for name in COUNTED},
            **{k: v for k, v in self.counters.items() if v},
        }


def _head(task: Task, prompt_set: PromptSet, memory: Memory | None) -> str:
    """System text on top of the task's own: the prompt set's, then the memory's one block."""
    parts = [prompt_set.act_system(task), prompt_set.memory_block(memory) if memory and memory.text else None]
    return "\n\n".join(p for p in parts if p)


def _refusal(failure: FailureReason, detail: str) -> Observation:
    return Observation(content={"error": detail}, source=Source.VALIDATOR, error=True, failure=failure)


def _too_many(reply: ParsedReply, text: str, limit: int) -> ParsedReply:
    """A message over the cap is void as a whole: none of its calls is answered."""
    detail = f"{len(reply.calls)} calls at once, at most {limit} allowed"
    visible = split_thinking(sanitise(text))[1].strip()
    return ParsedReply(reply.thinking, visible, (), FailureReason.TOO_MANY_CALLS, detail)


async def _together(answers: Sequence[Any]) -> list[Answer]:
    """All answers at the same time, in order; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
