"""What each generation earns, and what a step trains on: that reward, or a control without information.

Flows in: a scored episode and the method table; later the rewards of all rows of a batch. Flows out: one
reward a row.
Invariant: an episode without a reward keeps none; what is trained on is a function of the judged rewards, the
training seed and the step. Episodes and metrics keep the judged reward, whatever is trained on.

Credit (switch `credit`): `trajectory` gives every generation the episode's reward, `reward_to_go` the part
that its turn and later ones earned. What is trained on (switch `reward`):
`judged`    the row's own reward, its penalty and bonus included.
`zero`      0 for every row: all advantages are 0, and so are all gradients of the policy loss. What AdamW
            then still does is its decoupled weight decay, p <- p * (1 - lr * weight_decay), because moments
            of zero gradients are zero.
`shuffled`  the judged rewards, dealt anew among all scored episodes of the batch. All rows of an episode
            share one, no penalty or bonus on it: the size of the steps is that of training, their direction
            is chance.

The controls keep the weight decay (and the KL or entropy term, where the arm has one). An arm and its control
then differ in the reward alone, so what the arm gains over it is due to the reward. At this project's
learning rates decay is far below what training moves: 45 steps at 2e-4 with 0.01 shrink a weight by 9e-5 of
its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

import numpy as np

from envace.config.method import Method
from envace.types import Episode, Generation


def credited_reward(episode: Episode, generation: Generation, method: Method) -> float | None:
    """The reward of a generation's row; None when the episode is unscored.

    The credit, less the penalties on a generation without text and on one that failed itself: REHEARSE's
    broken response costs ACT's row nothing, nor the other way round. With `anchor_mode: bonus`, a REHEARSE
    generation whose call a true source answered too has an agreement a, and earns `anchor_weight * a` more.
    This is the reward its role's baseline sees, so with the mean b over the role group, bonuses included, the
    row's advantage is R + anchor_weight * a - b, and that of an unanchored REHEARSE row R - b. ACT rows have
    no bonus.
    """
    if episode.reward is None:
        return None
    to_go = method.credit == "reward_to_go"
    reward = reward_to_go(episode, generation.turn) if to_go else float(episode.reward)
    reward -= 0.0 if generation.text.strip() else method.empty_penalty
    reward -= method.blame_penalty if generation.failure is not None else 0.0
    return reward if generation.agreement is None else reward + method.anchor_weight * generation.agreement


def reward_to_go(episode: Episode, turn: int) -> float:
    """The part of a scored episode's reward that `turn` and the turns after it earned.

    With turn rewards r_u of a task of T turns it is sum_{u >= turn} r_u / T, so turn 0 is credited with the
    whole reward and a turn after the last judged one with nothing. Which turns were judged is read off the
    verdicts: a turn without checklist items has neither a verdict nor a reward.
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


def trained_rewards(
    reward_R: Sequence[float | None],
    episode_R: Sequence[str],
    judged: Mapping[str, float | None],
    *,
    scheme: str,
    seed: int,
    step: int,
) -> list[float | None]:
    """The reward each row is trained on. `judged` holds the reward of every episode of the batch, of those
    without rows too; the order of their names, not of arrival, decides what is dealt to whom.

    Raises KeyError for a row of an unknown episode or an unknown scheme.
    """
    names = sorted(e for e, reward in judged.items() if reward is not None)
    order = np.random.default_rng([seed, step]).permutation(len(names))
    dealt = {
        "judged": None,
        "zero": dict.fromkeys(names, 0.0),
        "shuffled": {e: judged[names[k]] for e, k in zip(names, order)},
    }[scheme]
    if dealt is None:
        return list(reward_R)
    return [None if reward is None else dealt[e] for reward, e in zip(reward_R, episode_R, strict=True)]
