"""What one token of a row counts in the loss.

Flows in: trained tokens a row. Flows out: one weight a row, `w_R`, so that
    objective = sum_r w_r * sum_t loss[r, t]
holds over the whole batch, however it is cut into micro-batches.
Invariant: rows without a trained token weigh 0 and change no other row's weight.

`generation`: w_r = 1 / (rows with tokens * tokens of r), the mean over rows of the row's token mean.
`token`:      w_r = 1 / (tokens of the batch), one mean over all tokens.
Weights are positive, so multiplying advantages by them and summing token losses (verl's `token-sum`) gives
the same gradient as verl's own mode named in `LOSS_AGG_MODE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def row_weights(lengths_R: Sequence[int] | np.ndarray, scheme: str) -> np.ndarray:
    """Weights [R] float64 for rows of `lengths_R` trained tokens (ones of the loss mask, gaps not counted)."""
    lengths_R = np.asarray(lengths_R, np.float64)
    if (lengths_R < 0).any():
        raise ValueError("a row has a negative number of tokens")
    return SCHEMES[scheme](lengths_R)


def _generation(lengths_R: np.ndarray) -> np.ndarray:
    used_R = lengths_R > 0
    return used_R / (np.maximum(lengths_R, 1) * max(used_R.sum(), 1))


def _token(lengths_R: np.ndarray) -> np.ndarray:
    return (lengths_R > 0) / max(lengths_R.sum(), 1)


SCHEMES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"generation": _generation, "token": _token}
LOSS_AGG_MODE: dict[str, str] = {"generation": "seq-mean-token-mean", "token": "token-mean"}
