"""What one token of a row counts in the loss.

Flows in: trained tokens, role and episode of every row (a row is one generation). Flows out: one weight a
row, w_R, so that
    objective = sum_r w_r * sum_t loss[r, t]
holds over the whole batch, however it is cut into micro-batches, ordered, padded, or merged into sequences.
Invariant: the objective is a mean: sum_r w_r * tokens_r = 1 unless nothing is trained. Rows without a trained
token, or of a role of weight 0, weigh 0 and change no other row's weight.

With n_r trained tokens and role weight p_r:
`token`       w_r = p_r / sum_q p_q n_q, every token equal
`generation`  w_r = p_r / (n_r sum_q p_q), every generation equal: the mean of the rows' token means
`episode`     w_r = p_r / (E sum_{q in e(r)} p_q n_q), every one of the E episodes equal, its tokens equal in
it

The clipped loss is positively homogeneous in the advantage: a factor on the advantage is a factor on the loss
and on its gradient. verl gives a token of training row s a weight v_s of its own (`verl_weights`), so the
advantage is multiplied by w_r / v_s (`envace.learn.sequences.token_advantages`). Any mode of verl's would do;
`LOSS_AGG_MODE` takes the one nearest to the scheme, because verl averages its KL and entropy terms by the
same mode and there is no advantage in them to put a weight on. With one row a generation and equal role
weights the factor is exactly 1 for `token` and `generation`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

LOSS_AGG_MODE: dict[str, str] = {
    "token": "token-mean",
    "generation": "seq-mean-token-mean",
    "episode": "token-mean",
}


def row_weights(
    length_R: Sequence[int] | np.ndarray,
    scheme: str,
    *,
    role_weight_R: Sequence[float] | np.ndarray | None = None,
    episode_R: Sequence[Hashable] | None = None,
) -> np.ndarray:
    """Weights [R] float64 for rows of `length_R` trained tokens (ones of the loss mask, gaps not counted).

    `role_weight_R` is 1 everywhere when left out. Only `episode` needs `episode_R`, ids of any hashable kind.
    Raises ValueError for a negative length or weight and for a missing or short column.
    """
    length_R = np.asarray(length_R, np.float64)
    n = len(length_R)
    role_R = np.ones(n) if role_weight_R is None else np.asarray(role_weight_R, np.float64)
    if (length_R < 0).any() or (role_R < 0).any():
        raise ValueError("a row has a negative number of tokens or a negative weight")
    if scheme == "episode" and episode_R is None:
        raise ValueError("loss weight `episode` needs the episode of every row")
    if not n == len(role_R) == len(episode_R if episode_R is not None else length_R):
        raise ValueError("lengths, role weights and episodes differ in length")
    used_R = role_R * (length_R > 0)
    whole_R = np.broadcast_to((role_R * length_R).sum(), n)
    if scheme == "generation":
        whole_R = np.maximum(length_R, 1) * used_R.sum()
    elif scheme == "episode" and episode_R is not None:
        codes: dict[Hashable, int] = {}
        code_R = np.array([codes.setdefault(e, len(codes)) for e in episode_R], np.int64)
        tokens_E = np.bincount(code_R, role_R * length_R)
        whole_R = tokens_E[code_R] * (tokens_E > 0).sum()
    weight_R: np.ndarray = np.divide(used_R, whole_R, out=np.zeros(n), where=whole_R > 0)
    return weight_R  # 0 where nothing is trained


def verl_weights(length_S: Sequence[int] | np.ndarray, mode: str) -> np.ndarray:
    """Weight [S] float64 that verl's aggregation gives each token of a training row of `length_S` trained
    tokens.

    `token-mean`: 1 / tokens of the batch. `seq-mean-token-mean`: 1 / (rows with tokens * tokens of the row),
    the trainer telling verl the number of rows with tokens as the global batch size.
    """
    return row_weights(length_S, next(ours for ours, theirs in LOSS_AGG_MODE.items() if theirs == mode))
