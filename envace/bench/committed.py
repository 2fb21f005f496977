"""What a committed run is worth, and the floors every score stands on.

Invariant: the world's hidden state is consulted here and nowhere else; an item that cannot be judged raises,
it never counts as failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.errors import DataError
from envace.judge.base import RuleJudge
from envace.judge.rules import judge_item
from envace.policy.protocol import Policy
from envace.policy.scripted import DoNothingPolicy, RandomPolicy
from envace.rollout.episode import run_episode
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import EnvironmentSource
from envace.types import Answer, Episode, Task, ToolCall
from envace.worlds.desk.floors import floor_policies as desk_floors
from envace.worlds.registry import World, kind_of, make_world, same_state


def committed(task: Task, episode: Episode) -> dict[str, float]:
    """`{"success": 0 | 1, "checklist": 0..1, "steps": n}` of a run in the true world.

    Success: every required item of every turn holds in the transcript, and the world ends as the calls of the
    reference dialogue leave it. Raises DataError when a rule of the task is missing or broken.
    """
    rewards, required = [], True
    for turn, checklist in enumerate(task.checklist):
        verdicts = [judge_item(item, task, turn, episode.messages) for item in checklist]
        if broken := next((v for v in verdicts if v.answer is Answer.UNSCORED), None):
            raise DataError(f"task {task.id}, turn {turn}, item {broken.item_id}: {broken.reason}")
        held = [v.answer is Answer.YES for v in verdicts]
        rewards.append(sum(i.weight for i, yes in zip(checklist, held) if yes))
        required &= all(yes for i, yes in zip(checklist, held) if i.required_for_next_turn)
    steps = sum(m.role == "assistant" for m in episode.messages)
    success = required and same_state(_after(task, episode.real_calls), end_state(task))
    return {"success": float(success), "checklist": sum(rewards) / len(rewards), "steps": float(steps)}


def end_state(task: Task) -> World:
    """A fresh world after the calls of the task's reference dialogue. Raises DataError when it has none."""
    if not task.reference:
        raise DataError(f"task {task.id} has no reference dialogue, so the state it should end in is unknown")
    return _after(task, [c for m in task.reference for c in m.calls])


def _after(task: Task, calls: Sequence[ToolCall]) -> World:
    world = make_world(task)
    for call in calls:
        world.call(call)
    return world


async def floor_scores(
    tasks: Sequence[Task], seed: int, policies: Mapping[str, Policy] | None = None
) -> dict[str, dict[str, float]]:
    """What agents without skill score in the true world, one episode per task: `{"do_nothing": {"success":
    0.0, "checklist": 0.0, "steps": 1.0}, "random": {...}}`. `policies` are further ones.
    """
    scores = {}
    agents = {"do_nothing": DoNothingPolicy(), "random": RandomPolicy(seed), **(policies or {})}
    for name, policy in agents.items():
        each = [committed(task, await true_episode(task, policy, seed)) for task in tasks]
        scores[name] = {k: sum(s[k] for s in each) / len(each) for k in each[0]} if each else {}
    return scores


def floor_policies(tasks: Sequence[Task], seed: int) -> dict[str, Policy]:
    """The agents without skill that the tasks' kind of world brings beyond the two every kind has."""
    return dict(desk_floors(tasks, seed)) if {kind_of(task) for task in tasks} == {"desk"} else {}


async def true_episode(task: Task, policy: Policy, seed: int) -> Episode:
    """One episode of a scripted policy in the true world, judged by rules."""
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
