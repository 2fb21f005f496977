"""What a step trains on: the judged reward, or a control that carries no information on the episodes.

Flows in: the judged reward of every row and of its episode. Flows out: one reward a row, in the same order.
Invariant: an episode without a reward keeps none; the outcome is a function of the judged rewards, the training
seed and the step. Episodes and metrics keep the judged reward, whatever is trained on.

`judged`    the row's own reward, its penalty and bonus included.
`zero`      0 for every row: all advantages are 0, and so are all gradients of the policy loss. What AdamW then
            still does is its decoupled weight decay, p <- p * (1 - lr * weight_decay), because moments of zero
            gradients are zero.
`shuffled`  the judged rewards, dealt anew among all scored episodes of the batch. All rows of an episode share
            one, no penalty or bonus on it: the size of the steps is that of training, their direction is chance.

The controls keep the weight decay (and the KL or entropy term, where the arm has one). An arm and its control
then differ in the reward alone, so what the arm gains over it is due to the reward. At this project's learning
rates decay is far below what training moves: 45 steps at 2e-4 with 0.01 shrink a weight by 9e-5 of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

Judged = Mapping[Hashable, float | None]  # episode -> its judged reward


def trained_rewards(
    reward_R: Sequence[float | None],
    episode_R: Sequence[Hashable],
    judged: Judged,
    *,
    scheme: str,
    seed: int,
    step: int,
) -> list[float | None]:
    """The reward each row is trained on. `judged` names every episode of the batch, those without rows too;
    its names must sort. Raises KeyError for a row of an unknown episode or an unknown scheme."""
    own = SCHEMES[scheme](judged, seed, step)
    if own is None:
        return list(reward_R)
    return [None if reward is None else own[e] for reward, e in zip(reward_R, episode_R, strict=True)]


def _zero(judged: Judged, seed: int, step: int) -> Judged:
    return {e: None if reward is None else 0.0 for e, reward in judged.items()}


def _shuffled(judged: Judged, seed: int, step: int) -> Judged:
    """A permutation of the scored episodes' rewards; the order of the names, not of arrival, decides."""
    names = sorted(e for e, reward in judged.items() if reward is not None)
    order = np.random.default_rng([seed, step]).permutation(len(names))
    return {**judged, **{e: judged[names[k]] for e, k in zip(names, order)}}


SCHEMES: dict[str, Callable[[Judged, int, int], Judged | None]] = {
    "judged": lambda judged, seed, step: None,
    "zero": _zero,
    "shuffled": _shuffled,
}
