"""Episodes -> training rows, one a generation, on exactly the sampled ids.

Flows in: a finished episode and the method table. Flows out: its rows, ACT and REHEARSE alike, each carrying
the episode's reward.
Invariant: ids, loss mask and log-probabilities of a row have one length and are never re-tokenised; the last
row is an ACT row, because verl reads an episode's outcome from its last output.
"""

from __future__ import annotations

from envace.method import Method
from envace.types import Episode, Generation, Role, Row


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
    return Row(
        prompt_ids=generation.prompt_ids,
        response_ids=generation.output_ids,
        loss_mask=(int(generation.role in method.roles),) * n,
        logprobs=generation.logprobs,  # empty when the policy reports none
        role=generation.role,
        group_id=episode.group_id,
        episode_id=episode.id,
        turn=generation.turn,
        reward=row_reward(episode.reward, generation.text, method.empty_penalty),
    )


def row_reward(reward: float | None, text: str, empty_penalty: float) -> float | None:
    """The episode's reward, less the penalty on a row without visible text; unscored stays unscored."""
    if reward is None or text.strip():
        return reward
    return reward - empty_penalty
