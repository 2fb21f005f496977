"""The end of a turn: its verdicts, what it is worth, and the episode's reward.

Flows in: the transcript of a turn. Flows out: verdicts and a turn reward, or an episode that is unscored by name.
Invariant: a missing verdict is never a score unless the method says so (`unscored: zero`), and then the episode still
names what it lacks; the time a judge takes is not the episode's.
"""

from __future__ import annotations

import asyncio

from envace.judge.checklist import episode_reward, turn_reward
from envace.rollout.interfaces import Halt, halting
from envace.rollout.state import FAILED, State
from envace.types import Answer, StopReason


async def judge_turn(state: State) -> bool:
    """Judge the current turn. True when a required item was not met. Raises Halt(JUDGE_FAILED) for an item nobody
    could judge; under `unscored: zero` the turn has then been worth its other items, and one failed question is enough,
    though the item held for another step."""
    state.turn_open = False
    items = state.task.checklist[state.turn] if state.turn < len(state.task.checklist) else ()
    if not items:
        return False
    left = _pause_clock(state)
    with halting(StopReason.JUDGE_FAILED):
        verdicts = await state.judge.judge_turn(state.task, state.turn, tuple(state.messages))
    _resume_clock(state, left)
    state.verdicts += verdicts
    for verdict in verdicts if state.watch else ():
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


async def judge_unfinished(state: State, stopped: Halt) -> None:
    """Judge the turn that the stop left open, where the method says so. The stop stays what it was."""
    if stopped.stop in FAILED or state.method.unfinished_turn != "judge" or not _something_to_judge(state):
        return
    try:
        await judge_turn(state)
    except Halt as halt:  # the episode is unscored
        state.unscored = state.unscored or halt.detail


def score(state: State, halt: Halt) -> tuple[float | None, str | None]:
    """(reward, why it is unscored). An unscored episode has no reward, or under `unscored: zero` that of what was
    judged: the open turn counts 0 and a failed item was a no."""
    reason = state.unscored
    if halt.stop in FAILED:
        reason = f"{halt.stop.value}: {halt.detail}" if halt.detail else halt.stop.value
    if reason and state.method.unscored == "exclude":
        return None, reason
    return episode_reward(state.turn_rewards, state.n_turns), reason or None


def _something_to_judge(state: State) -> bool:
    """An open turn in which ACT has said nothing is not judged: it counts 0 as an unreached one does."""
    return state.turn_open and any(m.role == "assistant" and m.turn == state.turn for m in state.messages)


def _pause_clock(state: State) -> float:
    """The deadline bounds the episode's own work; a judge has a deadline of its own."""
    if state.clock is None or (when := state.clock.when()) is None:
        return 0.0
    state.clock.reschedule(None)
    return when - asyncio.get_running_loop().time()


def _resume_clock(state: State, left: float) -> None:
    if state.clock is not None:
        state.clock.reschedule(asyncio.get_running_loop().time() + left)
