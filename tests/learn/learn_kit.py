"""Sequences written down as they are, and batches of them."""

import numpy as np

from envace.learn.sequences import JOINS, TrainingRow, TrainingSequence, batch_rows
from envace.types import Role


def row(
    reward=1.0, role=Role.ACT, group="g", episode="e", turn=0, tokens=1, trained=True, **more
) -> TrainingRow:
    return TrainingRow(
        role=role,
        group_id=group,
        episode_id=episode,
        turn=turn,
        reward=reward,
        length=tokens,
        trained=tokens * trained,
        **more,
    )


def sequence(prompt, response, *args, trained=True, logprobs=True, **more) -> TrainingSequence:
    """One generation's; `args` and `more` are those of its row."""
    return TrainingSequence(
        prompt_ids=tuple(prompt),
        response_ids=tuple(response),
        loss_mask=(int(trained),) * len(response),
        logprobs=tuple(-float(i) for i in response) if logprobs else (),
        rows=(row(*args, tokens=len(response), trained=trained, **more),),
    )


def joined(sequences, how):
    """The sequences of each episode in turn."""
    episodes = list(dict.fromkeys(s.rows[0].episode_id for s in sequences))
    return [s for e in episodes for s in JOINS[how]([s for s in sequences if s.rows[0].episode_id == e])]


def batch(sequences, padding=0, padded=1):
    """(rows, masks) of a batch; padding copies the first sequence and has no trained token."""
    masks = [np.array(s.loss_mask) for s in sequences] + [np.zeros(padded, int)] * padding
    rows_S = [s.rows for s in [*sequences, *sequences[:1] * padding]]
    return batch_rows(rows_S, masks, [True] * len(sequences) + [False] * padding), masks
