"""Verdicts of a turn -> its reward; rewards of turns -> the episode's; the checklist training is judged by.

An item passes when any verdict on it is yes; a turn with an item nobody could judge has no reward at all, so
that a broken judge can be told from a failed policy. Only `training_task` takes items away, and only training
calls it: an evaluation is judged by the whole checklist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from envace.config.method import Method
from envace.errors import DataError
from envace.types import Answer, Item, Task, Verdict, replace

GROUNDING = "tool.content"  # what a grounding item looks at: the responses, not what ACT made of them


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScore:
    """`TurnScore(reward=0.8, passed=0.8, unscored=(), required_unmet=False)`."""

    reward: float | None  # weighted share of passed items; None when an item is unscored
    passed: float  # the same with every unscored item taken for a no
    unscored: tuple[str, ...] = ()  # ids of the items without a usable verdict
    required_unmet: bool = False  # an item that the next turn builds on was answered no


def item_answer(item: Item, verdicts: Sequence[Verdict]) -> Answer:
    """All verdicts on one item as one answer: yes beats unscored beats no; no verdict is unscored."""
    answers = {v.answer for v in verdicts if v.item_id == item.id}
    if Answer.YES in answers:
        return Answer.YES
    return Answer.NO if answers == {Answer.NO} else Answer.UNSCORED


def turn_reward(items: Sequence[Item], verdicts: Sequence[Verdict]) -> TurnScore:
    """Weights of the passed items, summed. `verdicts` may hold several an item (one a step, say)."""
    answers = {item.id: item_answer(item, verdicts) for item in items}
    unscored = tuple(i for i, answer in answers.items() if answer is Answer.UNSCORED)
    passed = math.fsum(item.weight for item in items if answers[item.id] is Answer.YES)
    unmet = any(item.required_for_next_turn and answers[item.id] is Answer.NO for item in items)
    return TurnScore(
        reward=None if unscored else passed, passed=passed, unscored=unscored, required_unmet=unmet
    )


def episode_reward(turn_rewards: Sequence[float], n_turns: int) -> float:
    """Mean over all turns of the task; turns that were never reached count 0."""
    if len(turn_rewards) > n_turns or n_turns < 1:
        raise ValueError(f"{len(turn_rewards)} judged turns for a task of {n_turns}")
    return math.fsum(turn_rewards) / n_turns


def training_task(task: Task, method: Method) -> Task:
    """The task with the checklist that training is judged by: the whole one, or (`grounding: drop`) one
    without grounding items. Raises DataError when nothing that carries weight would be left of a turn."""
    if method.grounding == "keep":
        return task
    turns = []
    for turn, items in enumerate(task.checklist):
        kept = [item for item in items if item.focus_on != GROUNDING]
        total, left = (math.fsum(item.weight for item in group) for group in (items, kept))
        if len(kept) < len(items) and left <= 0:
            raise DataError(
                f"task {task.id}, turn {turn}: without its items on {GROUNDING} (grounding: drop) "
                "nothing is left to reward"
            )
        turns.append(items if len(kept) == len(items) else _scaled(kept, total, left))
    return replace(task, checklist=tuple(turns))


def _scaled(kept: Sequence[Item], total: float, left: float) -> tuple[Item, ...]:
    """Items whose weights sum to `left`, scaled to sum to `total`, depending on each other alone."""
    names = {item.id for item in kept}
    changes = (
        (item.weight * total / left, tuple(other for other in item.dependence if other in names))
        for item in kept
    )
    return tuple(replace(i, weight=weight, dependence=needs) for i, (weight, needs) in zip(kept, changes))


def required_held(task: Task, verdicts: Sequence[Verdict]) -> bool:
    """Whether every required item of every turn holds; an item of a turn that was never judged does not."""
    held = {(v.turn, v.item_id) for v in verdicts if v.answer is Answer.YES}
    return all(
        (turn, item.id) in held
        for turn, items in enumerate(task.checklist)
        for item in items
        if item.required_for_next_turn
    )
