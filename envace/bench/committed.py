"""What a committed run is worth, and the floors every score stands on.

Flows in: a task and an episode whose calls the task's true world answered. Flows out: plain numbers.
Invariant: the world's hidden state is consulted here and nowhere else; an item that cannot be judged raises,
it never counts as failed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import TypeVar

from envace.errors import DataError
from envace.judge.rules import judge_item
from envace.policy.protocol import Policy
from envace.types import Answer, Episode, Task
from envace.worlds.registry import World, kind_of, make_world, same_state

T = TypeVar("T")


def committed(task: Task, episode: Episode) -> dict[str, float]:
    """`{"success": 0 | 1, "checklist": 0..1, "steps": n}` of a run in the true world.

    Success: every required item of every turn holds in the transcript, and the world ends as the calls of the
    reference dialogue leave it. Raises DataError when a rule of the task is missing or broken.
    """
    rewards, required = [], True
    for turn, checklist in enumerate(task.checklist):
        verdicts = [judge_item(item, task, turn, episode.messages) for item in checklist]
        broken = next((v for v in verdicts if v.answer is Answer.UNSCORED), None)
        if broken:
            raise DataError(f"task {task.id}, turn {turn}, item {broken.item_id}: {broken.reason}")
        held = [v.answer is Answer.YES for v in verdicts]
        rewards.append(sum(i.weight for i, yes in zip(checklist, held) if yes))
        required &= all(yes for i, yes in zip(checklist, held) if i.required_for_next_turn)
    world = make_world(task)
    for call in episode.real_calls:
        world.call(call)
    steps = sum(m.role == "assistant" for m in episode.messages)
    success = required and same_state(world, end_state(task))
    return {"success": float(success), "checklist": sum(rewards) / len(rewards), "steps": float(steps)}


def end_state(task: Task) -> World:
    """A fresh world after the calls of the task's reference dialogue. Raises DataError when it has none."""
    if not task.reference:
        raise DataError(f"task {task.id} has no reference dialogue, so the state it should end in is unknown")
    world = make_world(task)
    for call in (c for m in task.reference for c in m.calls):
        world.call(call)
    return world


# --- floors
# ---------------------------------------------------------------------------------------------------


def floors(
    tasks: Sequence[Task], seed: int, metric: str = "success", policies: Mapping[str, Policy] | None = None
) -> dict[str, float]:
    """Mean score in the true world of agents that need no skill: `{"do_nothing": 0.0, "random": 0.01}`.

    `policies` are further ones, by name. Works inside a running event loop too.
    """
    return {name: scores.get(metric, 0.0) for name, scores in floor_scores(tasks, seed, policies).items()}


def floor_scores(
    tasks: Sequence[Task], seed: int, policies: Mapping[str, Policy] | None = None
) -> dict[str, dict[str, float]]:
    """The same for every metric at once: `{"do_nothing": {"success": 0.0, "checklist": 0.0,
    "steps": 1.0}}`.
    """
    from envace.policy.scripted import DoNothingPolicy, RandomPolicy

    agents = {"do_nothing": DoNothingPolicy(), "random": RandomPolicy(seed), **(policies or {})}
    return {name: _run(mean_scores(policy, tasks, seed)) for name, policy in agents.items()}


def floor_policies(tasks: Sequence[Task], seed: int) -> dict[str, Policy]:
    """The agents without skill that the tasks' kind of world brings beyond the two every kind has."""
    if {kind_of(task) for task in tasks} != {"desk"}:
        return {}
    from envace.worlds.desk.floors import floor_policies as desks

    return desks(tasks, seed)


async def mean_scores(policy: Policy, tasks: Sequence[Task], seed: int) -> dict[str, float]:
    """Means of what `committed` gives over tasks, one episode each."""
    scores = [committed(task, await true_episode(task, policy, seed)) for task in tasks]
    return {k: sum(s[k] for s in scores) / len(scores) for k in scores[0]} if scores else {}


async def true_episode(task: Task, policy: Policy, seed: int) -> Episode:
    """One episode of a scripted policy in the true world, judged by rules."""
    from envace.chat.renderer import ByteRenderer
    from envace.config import RolloutParams
    from envace.config.method import Method
    from envace.judge.base import RuleJudge
    from envace.rollout.episode import run_episode
    from envace.rollout.prompts import load_prompt_set
    from envace.rollout.sources import EnvironmentSource

    return await run_episode(
        task,
        policy=policy,
        source=EnvironmentSource(make_world(task)),
        renderer=ByteRenderer(),
        judge=RuleJudge(),
        method=Method(source="environment"),
        params=RolloutParams(prompt_tokens=65536, response_tokens=4096),
        episode_id=f"floor/{task.id}",
        group_id=task.id,
        seed=seed,
        prompt_set=load_prompt_set("compact"),
    )


def _run(work: Coroutine[None, None, T]) -> T:
    """The result of a coroutine, also when this thread's event loop is already running."""
    result: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as e:  # handed to the caller below, whatever it is
            errors.append(e)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]
