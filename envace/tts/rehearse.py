"""Private rehearsal: N imagined tries of a task, self-evaluated and condensed, before the committed run.

Flows in: a task, a policy, a renderer, a budget. Flows out: the attempts and the memory for the committed
run.
Invariant: nothing here can reach a true source. No executor, world or judge is passed in; each try is
answered by the policy's own REHEARSE role without examples, and sees the task without records, checklist,
world and later user turns. Zero tries give an empty memory, which adds no message to the committed run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from envace.chat.renderer import Renderer
from envace.config import RolloutParams, TTSParams
from envace.config.method import Method
from envace.policy.protocol import GenerationRequest, Policy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import PromptSet
from envace.rollout.rehearsal import RehearsalSource
from envace.tts import memory as notes
from envace.types import Attempt, Episode, Memory, Message, Role, Sampling, Task, Verdict, replace

EMPTY = Memory(text="", n_attempts=0, tokens=0)
T = TypeVar("T")


async def rehearse(
    task: Task,
    *,
    policy: Policy,
    renderer: Renderer,
    budget: TTSParams,
    mode: str,
    n: int,
    method: Method,
    params: RolloutParams,
    prompt_set: PromptSet,
    seed: int = 0,
) -> tuple[list[Attempt], Memory]:
    """Spend n private tries on a task. `mode` is "parallel" (tries know nothing of each other) or
    "sequential" (try k is shown what tries 0..k-1 taught). Raises what the policy raises outside episodes."""
    if mode not in ("parallel", "sequential"):
        raise ValueError(f"mode is {mode!r}, must be parallel or sequential")
    if n == 0:
        return [], EMPTY
    private = replace(method, source="rehearse", few_shot="none")  # only REHEARSE answers, from no example
    stage = Rehearsal(private_view(task), policy, renderer, budget, private, params, prompt_set, seed)
    attempts: list[Attempt] = []
    if mode == "parallel":
        attempts = list(await asyncio.gather(*(stage.attempt(k, EMPTY) for k in range(n))))
    else:
        for k in range(n):
            attempts.append(await stage.attempt(k, stage.lesson(attempts)))
    return attempts, await stage.condense(attempts)


def private_view(task: Task) -> Task:
    """The task as it is known before anything real happened: the first message and the tools."""
    return replace(task, user_turns=(), checklist=((),), records=(), world=None, reference=())


class NoChecklist:
    """The judge of a private try: there is nothing it could know."""

    async def judge_turn(self, task: Task, turn: int, messages: Sequence[Message]) -> list[Verdict]:
        assert not task.checklist[turn], "a private try must not see a checklist"
        return []


@dataclass(frozen=True)
class Rehearsal:
    """What the tries of one task share. Holds a policy and settings, and no way to a true source."""

    task: Task
    policy: Policy
    renderer: Renderer
    budget: TTSParams
    method: Method
    params: RolloutParams
    prompt_set: PromptSet
    seed: int

    async def attempt(self, index: int, prior: Memory) -> Attempt:
        """One try and what the policy makes of it: its prompt leaves the oldest answers out until it fits."""
        episode = await run_episode(
            self.task,
            policy=self.policy,
            source=RehearsalSource(self.policy, self.renderer, self.prompt_set, self.method, self.params),
            renderer=self.renderer,
            judge=NoChecklist(),
            method=self.method,
            params=self.params,
            episode_id=f"{self.task.id}/private-{self.seed}-{index}",
            group_id=f"{self.task.id}/private-{self.seed}",
            seed=self.seed * 1009 + index,
            attempt=index,
            prompt_set=self.prompt_set,
            memory=prior if prior.text else None,
        )
        names = notes.tool_names(self.task)
        for dropped in range(len(notes.digest(episode)) + 1):
            messages = notes.evaluation_messages(self.task, episode, dropped)
            if len(self.renderer.render(messages)) <= self.params.prompt_tokens:
                break
        feedback, tokens = await self._ask(
            messages, lambda text: notes.parse_feedback(text, names), self.budget.feedback_tokens, episode
        )
        tokens += sum(len(g.prompt_ids) + len(g.output_ids) for g in episode.generations)
        return Attempt(
            index=index,
            episode=episode,
            feedback=notes.fallback_feedback(episode, names) if feedback is None else feedback,
            feedback_ok=feedback is not None,
            tokens=tokens,
        )

    def lesson(self, attempts: Sequence[Attempt]) -> Memory:
        """What a later try of a sequence is shown: a digest made here, no generation."""
        if not attempts:
            return EMPTY
        found = {"plan": list(attempts[-1].feedback["next"]), "avoid": list(attempts[-1].feedback["risky"])}
        return notes.compose(found, attempts, self.task, self.renderer, self.budget.memory_tokens)

    async def condense(self, attempts: Sequence[Attempt]) -> Memory:
        """All tries as one memory, written by the policy as JSON and put into words here."""
        names, cap = notes.tool_names(self.task), self.budget.memory_tokens
        messages = notes.condensation_messages(self.task, attempts)
        found, tokens = await self._ask(
            messages, lambda text: notes.parse_notes(text, names), cap, attempts[0].episode
        )
        plan = notes.fallback_notes(attempts) if found is None else found
        memory = notes.compose(plan, attempts, self.task, self.renderer, cap, found is None)
        return replace(memory, cost_tokens=tokens)

    async def _ask(
        self, messages: tuple[Message, ...], parse: Callable[[str], T], cap: int, episode: Episode
    ) -> tuple[T | None, int]:
        """One JSON answer, one more chance when it is malformed: greedy decoding would repeat it, so that one
        is sampled. Returns the value, if usable, and tokens spent."""
        tokens = 0
        for chance in range(2):
            ids = tuple(self.renderer.render(messages))
            if len(ids) > self.params.prompt_tokens:
                break
            temperature = max(0.5, self.params.temperature) if chance else 0.0
            request = GenerationRequest(
                role=Role.ACT,
                messages=messages,
                prompt_ids=ids,
                sampling=Sampling(temperature=temperature, max_tokens=cap, seed=self.seed),
                episode_id=episode.id,
                task_id=self.task.id,
                turn=0,
                step=self.params.max_steps + chance,  # behind every step of the try itself
            )
            completion = await self.policy.generate(request)
            tokens += len(ids) + len(completion.output_ids)
            try:
                return parse(completion.text), tokens
            except ValueError as e:
                messages = (*messages, Message(role="user", content=notes.AGAIN.format(reason=e)))
        return None, tokens
