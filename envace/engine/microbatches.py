"""How the rows of an update are put into micro-batches on a CPU.

Invariant: the update is the same as with one forward pass a row. No micro-batch holds more than the budget of
padded tokens, unless one row alone does; all ranks get the same number of micro-batches, as their collectives
need.

verl balances micro-batches by work, which mixes lengths; where padding cannot be removed, half again is
padding. Here rows of like length lie together, and two kinds of row cost nothing:
- a row whose advantages are all 0, when the policy loss is the only loss (`skip_unmoved`). It has no
  gradient; its tokens were counted for the loss's mean before, so leaving it out changes nothing.
- a row that a longer one begins with, as each ACT row of an episode begins the next. In a causal model the
  longer row's forward pass holds its log-probabilities; it is carried along, see `carriers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict
from torch.distributed import ProcessGroup
from verl.utils import tensordict_utils as tu

from envace.types import JSON


def plan(
    lengths: Sequence[int],
    moved: Sequence[bool],
    carrier: Sequence[int],
    budget: int,
    agree: Callable[[int], int] = int,
) -> list[list[int]]:
    """Row numbers of each micro-batch, carried rows behind their carriers. `agree` turns this rank's count
    into everybody's, which is never smaller; rows that move nothing fill the gap when there are too few
    others.
    """
    live = [i for i, m in enumerate(moved) if m]
    parts = by_length(lengths, [i for i in live if carrier[i] == i], budget)
    spare = iter([i for i, m in enumerate(moved) if not m])
    alone: list[int] = []  # rows that must pay for themselves to make up the number
    wanted = agree(max(1, len(parts)))
    while len(parts) < wanted:
        most = max(parts, key=len, default=[])
        rest = next((i for i in live if carrier[i] != i and i not in alone), None)
        if len(most) > 1:
            parts.remove(most)
            parts += [most[::2], most[1::2]]
        elif rest is not None:
            alone.append(rest)
            parts.append([rest])
        else:
            parts.append([next(spare)])
    home = {i: part for part in parts for i in part}
    for i in live:
        if i not in home:
            home[carrier[i]].append(i)
    return parts


def by_length(lengths: Sequence[int], rows: Sequence[int], budget: int) -> list[list[int]]:
    """Rows from longest to shortest, cut wherever one more would exceed the budget of padded tokens."""
    parts: list[list[int]] = []
    for i in sorted(rows, key=lambda i: (-lengths[i], i)):
        if not parts or lengths[parts[-1][0]] * (len(parts[-1]) + 1) > budget:
            parts.append([])
        parts[-1].append(i)
    return parts


def carriers(rows: Sequence[Sequence[int]], among: Sequence[bool] | None = None) -> list[int]:
    """For each row a row that begins with it and begins no other, itself when there is none:
    [[1], [1, 2], [3]] -> [1, 1, 2].

    Rows outside `among` carry nothing and are not carried. In dictionary order a row stands right before the
    rows that begin with it.
    """
    found = list(range(len(rows)))
    order = sorted((i for i in found if among is None or among[i]), key=lambda i: (list(rows[i]), -i))
    for i, after in zip(order[-2::-1], order[:0:-1]):
        if list(rows[after][: len(rows[i])]) == list(rows[i]):
            found[i] = found[after]
    return found


def prepare_micro_batches(
    data: TensorDict, dp_group: ProcessGroup | None = None, **verls_other_choices: JSON
) -> tuple[list[TensorDict], list[list[int]]]:
    """Stands where verl's function of this name does; rows are left out only when the trainer allows it."""

    def most(n: int) -> int:
        """Of all ranks."""
        if dp_group is None or torch.distributed.get_world_size(dp_group) == 1:
            return n
        count = torch.tensor(n)
        torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        return int(count)

    rows = [row.tolist() for row in data["input_ids"].unbind()]
    moved = [True] * len(rows)
    if tu.get_non_tensor_data(data, "skip_unmoved", default=False):
        moved = [bool(advantage.any()) for advantage in data["advantages"].unbind()]
    budget = int(data["max_token_len_per_gpu"])
    parts = plan(list(map(len, rows)), moved, carriers(rows, moved), budget, most)
    return [tu.index_select_tensor_dict(data, part) for part in parts], parts
