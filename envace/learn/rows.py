"""Episodes -> training rows, one a generation, on exactly the sampled ids.

Flows in: a finished episode and the method table. Flows out: its rows, ACT and REHEARSE alike, each carrying the
reward it is credited with.
Invariant: ids, loss mask and log-probabilities of a row have one length and are never re-tokenised; the last
row is an ACT row, because verl reads an episode's outcome from its last output.

Rewards and advantages are facts about generations, so a row stays one whatever shape it is trained in; see
streams.py for how several become one sequence of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum

from envace.config.method import Method
from envace.types import Episode, Generation, Role, Row

Credit = Callable[[Episode, int], float]  # (scored episode, turn of the row) -> the row's reward


def rows_from_episode(episode: Episode, method: Method) -> list[Row]:
    """One row a generation that produced a token, in order, the last ACT row moved to the end.

    Rows of a role outside `method.roles` keep their place with a zero loss mask: that role is frozen.
    Generations without any token are left out; `empty_generations` counts them.
    Raises ValueError when log-probabilities and ids differ in length.
    """
    rows = [_row(episode, g, method) for g in episode.generations if g.output_ids]
    last = max((i for i, row in enumerate(rows) if row.role is Role.ACT), default=None)
    if last is not None:
        rows.append(rows.pop(last))
    return rows


def empty_generations(episode: Episode) -> int:
    """Generations that produced no token at all, hence no row."""
    return sum(not g.output_ids for g in episode.generations)


def _row(episode: Episode, generation: Generation, method: Method) -> Row:
    n = len(generation.output_ids)
    if len(generation.logprobs) not in (0, n):
        raise ValueError(f"episode {episode.id}: {len(generation.logprobs)} log-probabilities for {n} tokens")
    credited = None if episode.reward is None else CREDITS[method.credit](episode, generation.turn)
    return Row(
        prompt_ids=generation.prompt_ids,
        response_ids=generation.output_ids,
        loss_mask=(int(generation.role in method.roles),) * n,
        logprobs=generation.logprobs,  # empty when the policy reports none
        role=generation.role,
        group_id=episode.group_id,
        episode_id=episode.id,
        turn=generation.turn,
        reward=anchored(row_reward(credited, generation, method), generation, method),
    )


def row_reward(reward: float | None, generation: Generation, method: Method) -> float | None:
    """The credited reward, less the penalties on a row without text and on one whose own generation failed.

    A failure is the generation's alone: REHEARSE's broken response costs ACT's row nothing, nor the other way round.
    Unscored stays unscored.
    """
    if reward is None:
        return None
    empty = 0.0 if generation.text.strip() else method.empty_penalty
    return reward - empty - (method.blame_penalty if generation.failure is not None else 0.0)


def anchored(reward: float | None, generation: Generation, method: Method) -> float | None:
    """The reward with the consistency bonus of `anchor_mode: bonus`; unscored stays unscored.

    A REHEARSE generation whose call a true source answered too has an agreement a, and its row the reward
    R + anchor_weight * a. This is the reward its role's baseline sees, so with the mean b over the role group, bonuses
    included, the row's advantage is R + anchor_weight * a - b, and that of an unanchored REHEARSE row R - b. ACT rows
    have no bonus, and neither has their baseline.
    """
    if reward is None or generation.agreement is None:
        return reward
    return reward + method.anchor_weight * generation.agreement


def reward_to_go(episode: Episode, turn: int) -> float:
    """The part of a scored episode's reward that `turn` and the turns after it earned.

    With turn rewards r_u of a task of T turns it is sum_{u >= turn} r_u / T, so turn 0 is credited with the whole
    reward and a turn after the last judged one with nothing. Which turns were judged is read off the verdicts: a
    turn without checklist items has neither a verdict nor a reward.
    Raises ValueError when verdicts and turn rewards do not tell which turn earned what.
    """
    if not episode.reward:
        return 0.0  # nothing was earned, or an episode without a verdict counts 0 (unscored: zero)
    turns = sorted({verdict.turn for verdict in episode.verdicts})
    if len(turns) != len(episode.turn_rewards):
        raise ValueError(
            f"episode {episode.id}: {len(episode.turn_rewards)} turn rewards, verdicts on {len(turns)} turns"
        )
    later = fsum(r for t, r in zip(turns, episode.turn_rewards) if t >= turn)
    return episode.reward * (later / fsum(episode.turn_rewards))


CREDITS: dict[str, Credit] = {
    "trajectory": lambda episode, turn: float(episode.reward or 0.0),
    "reward_to_go": reward_to_go,
}
