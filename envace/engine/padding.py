"""Rows of verl's queue that stand in a batch once more (`padding: duplicates`).

Invariant: a copy, tagged `is_copy`, is its row in every field, so it is a member of the same group and
episode; placeholders of episodes without a row are not copied. What still does not divide over the ranks is
verl's to fill, with rows of zero mask.
"""

from __future__ import annotations

import copy
from types import ModuleType

import torch
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from envace.learn.sequences import copies

PLACEHOLDER_TOKENS = 2
"""Prompt and response of a row that stands for an episode without one."""


def with_copies(
    batch: KVBatchMeta, queue: ModuleType, how: str, *, ranks: int, seed: int, step: int
) -> KVBatchMeta:
    """The batch and its copies, under the switch `padding`. Rows are chosen in the order of their keys."""
    tags = dict(zip(batch.keys, batch.tags, strict=True))
    real = sorted(key for key, tag in tags.items() if tag["seq_len"] > PLACEHOLDER_TOKENS)
    chosen = [real[i] for i in copies(how, len(real), ranks, seed, step)]
    if not chosen:
        return batch
    keys = [f"copy{step}n{i}_0_0" for i in range(len(chosen))]
    new_tags = [{**tags[key], "is_copy": True} for key in chosen]
    rows = []
    for key in chosen:
        found = queue.kv_batch_get(keys=[key], partition_id=batch.partition_id)[0]
        fields = {name: found[name] for name in found.keys()}
        rows.append(
            {k: v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v) for k, v in fields.items()}
        )
    fields = list_of_dict_to_tensordict(rows)
    queue.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields, tags=new_tags)
    return KVBatchMeta(
        keys=[*batch.keys, *keys],
        tags=[*batch.tags, *new_tags],
        partition_id=batch.partition_id,
        fields=batch.fields,
        extra_info=batch.extra_info,
    )
