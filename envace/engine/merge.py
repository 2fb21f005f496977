"""The shards of a checkpoint, put together: `python -m envace.engine.merge SHARDS START TARGET`.

It runs in the trainer's environment, whose torch wrote the shards. verl's own merger writes bfloat16 whatever
the start policy holds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM


def merge(shards: Path, start: Path, target: Path) -> None:
    """Put the shards of every rank together and save them as the start model is saved, in its precision.

    Raises RuntimeError for weights that are not those of the start model.
    """
    ranks = json.loads((shards / "fsdp_config.json").read_text())["world_size"]
    files = [shards / f"model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
    # our own trainer's: DTensors, which torch reads from pickles alone
    parts = [torch.load(file, map_location="cpu", weights_only=False) for file in files]
    model = AutoModelForCausalLM.from_pretrained(start, dtype="auto")
    state = {name: _whole([part[name] for part in parts]) for name in parts[0]}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - set(getattr(model, "_tied_weights_keys", None) or ()):
        raise RuntimeError(f"weights do not fit {start}: missing {missing[:4]}, unexpected {unexpected[:4]}")
    model.save_pretrained(target)


def _whole(pieces: list[torch.Tensor]) -> torch.Tensor:
    """A tensor from its pieces on each rank, sharded over a mesh of one dimension or the same everywhere."""
    if not isinstance(pieces[0], DTensor):
        return pieces[0]
    (placement,) = pieces[0].placements
    local = [piece._local_tensor for piece in pieces]
    return torch.cat(local, dim=placement.dim) if placement.is_shard() else local[0]


if __name__ == "__main__":
    merge(*map(Path, sys.argv[1:]))
