"""A stored episode played again from its own words, which brings back the prompts that were left out of it.

Flows in: an episode as training stores it, without prompts, and what it was played by (task, method, parameters, prompt
set, tokenizer). Flows out: its generations with the exact ids that each of them was shown.
Invariant: nothing is sampled, asked or judged: every word, response and verdict is the stored one. A prompt follows from
the task, the words before it and the prompt set, so what comes back is what was there, or an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from envace.chat.renderer import Renderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.errors import DataError
from envace.policy.protocol import Completion, GenerationRequest
from envace.rollout.episode import run_episode
from envace.rollout.interfaces import Answered, CallContext
from envace.rollout.prompts import PromptSet
from envace.rollout.rehearsal import RehearsalSource
from envace.types import (
    Episode,
    Generation,
    Memory,
    Message,
    Observation,
    Role,
    Sampling,
    Source,
    Task,
    Verdict,
    replace,
)

NAMES = {
    "rehearse": Source.REHEARSAL,
    "simulator": Source.SIMULATOR,
    "recorded": Source.RECORDED,
    "environment": Source.ENVIRONMENT,
    "mcp": Source.ENVIRONMENT,
}
Place = tuple[Role, int, int]  # role, step, index of the call


class Stored:
    """Policy, observation source and judge of an episode that has happened."""

    parallel = True

    def __init__(self, episode: Episode, name: Source):
        self.name = name
        self.said = {_place(g): g for g in episode.generations}
        self.heard = _observations(episode)
        self.verdicts = episode.verdicts
        self.rehearsal: RehearsalSource | None = None  # writes REHEARSE's prompts

    async def generate(self, request: GenerationRequest) -> Completion:
        g = self.said[request.role, request.step, request.call_index]  # a missing one ends the replay
        return Completion(
            text=g.text, output_ids=g.output_ids, logprobs=g.logprobs, finish=g.finish, weight_version=g.weight_version
        )  # fmt: skip

    async def answer(self, ctx: CallContext) -> Answered:
        observation = self.heard[ctx.step, ctx.call_index]
        if self.rehearsal is None or (Role.REHEARSE, ctx.step, ctx.call_index) not in self.said:
            return observation, None
        return observation, (await self.rehearsal.answer(ctx))[1]

    async def judge_turn(self, task: Task, turn: int, messages: Sequence[Message]) -> list[Verdict]:
        return [v for v in self.verdicts if v.turn == turn]


async def with_prompts(
    episode: Episode,
    task: Task,
    *,
    renderer: Renderer,
    method: Method,
    params: RolloutParams,
    prompt_set: PromptSet,
    sampling: Sampling | None = None,
    memory: Memory | None = None,
) -> Episode:
    """The episode with the prompt ids of every generation. `task` is the task as it was played: in training
    `training_task`, lent records included; `sampling` what the episode was given, as in `run_episode`. Raises DataError
    when anything is not what it was played with."""
    if prompt_set.hash != episode.prompt_set:
        raise DataError(
            f"episode {episode.id} was played with prompt set {episode.prompt_set}, not {prompt_set.hash}"
        )
    stored = Stored(episode, NAMES[method.source])
    stored.rehearsal = RehearsalSource(stored, renderer, prompt_set, method, params)
    again = await run_episode(
        task, policy=stored, source=stored, renderer=renderer, judge=stored, method=method,
        params=replace(params, deadline_s=1e9), episode_id=episode.id, group_id=episode.group_id, seed=episode.seed,
        attempt=episode.attempt, prompt_set=prompt_set, memory=memory, sampling=sampling,
    )  # fmt: skip
    found = {_place(g): g for g in again.generations}
    for g in episode.generations:
        if (twin := found.get(_place(g))) is None or twin.text != g.text or twin.sampling != g.sampling:
            raise DataError(
                f"episode {episode.id}: its {g.role.value} generation of step {g.step} does not come back; task, method "
                "or parameters are not those it was played with"
            )
    known = [replace(g, prompt_ids=found[_place(g)].prompt_ids) for g in episode.generations]
    return replace(episode, generations=tuple(known))


def _place(g: Generation) -> Place:
    return g.role, g.step, g.call_index


def _observations(episode: Episode) -> dict[tuple[int, int], Observation]:
    """Each response by the step and the index of its call."""
    found: dict[tuple[int, int], Observation] = {}
    steps = iter([g.step for g in episode.generations if g.role is Role.ACT])
    observed, step, index = iter(episode.observations), 0, 0
    for message in episode.messages:
        if message.role == "assistant":
            step, index = next(steps, step + 1), 0
        elif message.role == "tool" and (seen := next(observed, None)) is not None:
            found[step, index] = seen
            index += 1
    return found
