"""Keys and values of many sequences in one block, so that a sequence can join, leave or begin with another's
tokens.

Rows [0, live) are being written and lie together, so a step reads them without a copy; the rows
behind are finished and kept for their prefixes until the space is needed. `tokens[r, :length[r]]` are those
whose keys and values row r holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import sdpa_mask

ATTENTION = "shared_heads"
PIECE = 128
"""Positions the block grows by."""
NOTHING = -1
"""A token no prompt holds."""


def shared_heads(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention in which the query heads of one key head are more queries of it: transformers would copy the
    keys for each of them at every step.

    query [B, Q, L, D], key and value [B, K, T, D] with Q a multiple of K, attention_mask [B, 1, L, T] bool,
    None for plain causal attention. Returns [B, L, Q, D].
    """
    B, Q, L, D = query.shape
    K, T = key.shape[1:3]
    if attention_mask is None:
        causal = torch.ones(L, T, dtype=torch.bool, device=query.device).tril(T - L)
        attention_mask = causal.expand(B, 1, L, T)
    mask = attention_mask.repeat(1, 1, Q // K, 1) if L > 1 else attention_mask.expand(B, 1, Q // K, -1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(B, K, Q // K * L, D), key, value, attn_mask=mask, scale=scaling
    )
    return out.reshape(B, Q, L, D).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, shared_heads)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class _Window(Cache):
    """What the model sees as its cache: some adjacent rows of the block, up to a width."""

    def __init__(self, block: Slots, first: int, width: int, at: torch.Tensor):
        super().__init__(layers=[])
        self.block, self.first, self.width, self.at = block, first, width, at
        self.rows = torch.arange(at.shape[0], device=at.device).unsqueeze(1)

    def get_seq_length(self, *_: object) -> int:
        return 0

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = []
        for kind, new in enumerate((key, value)):  # [B, K, L, D]
            rows = self.block.layer(layer, kind, new)[self.first : self.first + len(new)]
            rows[self.rows, :, self.at] = new.transpose(1, 2)
            found.append(rows[:, :, : self.width])
        return found[0], found[1]


class Slots:
    """Room for `rows` sequences of a model. Its position `capacity` takes what padding writes and is never
    read.
    """

    def __init__(self, model: PreTrainedModel, rows: int):
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(f"the model has layers of kind {', '.join(sorted(kinds))}")
        model.set_attn_implementation(ATTENTION)
        self.model, self.device = model, next(model.parameters()).device
        self.rows, self.capacity, self.live = rows, 0, 0
        self.blocks: list[list[torch.Tensor]] = []  # [layer][key, value] -> [rows, K, capacity + 1, D]
        self.tokens = np.full((rows, 0), NOTHING, dtype=np.int64)
        self.length = np.zeros(rows, dtype=np.int64)
        self.used = np.zeros(rows, dtype=np.int64)  # when a row was last of use
        self.clock = 0

    def forget(self) -> None:
        """Drop every kept prefix: the weights have changed."""
        self.length[self.live :] = 0
        self.tokens[self.live :] = NOTHING

    def layer(self, layer: int, kind: int, like: torch.Tensor) -> torch.Tensor:
        """The block of a layer's keys (kind 0) or values (1), made when it is first written."""
        while len(self.blocks) <= layer:
            self.blocks.append([])
        if len(self.blocks[layer]) <= kind:
            shape = (self.rows, like.shape[1], self.capacity + 1, like.shape[3])
            self.blocks[layer].append(torch.zeros(shape, dtype=like.dtype, device=like.device))
        return self.blocks[layer][kind]

    def open(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Make the next rows live, each holding what an earlier row shares with its prompt; the last token is
        always left to be read. Returns how many tokens each holds."""
        self._grow(max(map(len, prompts)))
        first = self.live
        for prompt in prompts:
            source, shared = self._longest_prefix(np.asarray(prompt[:-1]))
            self._use(source)
            row, moved_to = self.live, self._free_row()
            if shared:
                self._copy(moved_to if source == row else source, row, shared)
            self.tokens[row, : len(prompt)] = prompt
            self.tokens[row, len(prompt) :] = NOTHING
            self.length[row] = shared
            self.live += 1
        return self.length[first : self.live]

    def close(self, row: int) -> int:
        """A live row is finished: the last live one takes its place. Returns that row's old number."""
        last = self.live - 1
        if row != last:
            self._swap(row, last)
        self._use(last)
        self.live = last
        return last

    def _use(self, row: int) -> None:
        self.clock += 1
        self.used[row] = self.clock

    def _longest_prefix(self, prompt: np.ndarray) -> tuple[int, int]:
        """(row, tokens) of the row that shares most with the beginning of a prompt."""
        if not len(prompt):
            return 0, 0
        same = self.tokens[:, : len(prompt)] == prompt
        shared = np.where(same.all(1), len(prompt), same.argmin(1))
        shared = np.minimum(shared, self.length)
        best = int(shared.argmax())
        return best, int(shared[best])

    def _free_row(self) -> int:
        """Empty row `live`: what it holds moves to where the kept row lies that was of no use for longest.
        Returns that row.
        """
        row = self.live
        kept = np.arange(row, self.rows)
        victim = int(kept[self.used[kept].argmin()])
        if victim != row and self.length[row]:
            self._copy(row, victim, int(self.length[row]))
            self.tokens[victim], self.length[victim] = self.tokens[row], self.length[row]
            self.used[victim] = self.used[row]
        return victim

    def _copy(self, source: int, target: int, width: int) -> None:
        for block in (b for layer in self.blocks for b in layer):
            block[target, :, :width] = block[source, :, :width]

    def _swap(self, a: int, b: int) -> None:
        width = int(max(self.length[a], self.length[b]))
        for block in (x for layer in self.blocks for x in layer):
            block[[a, b], :, :width] = block[[b, a], :, :width]
        for about in (self.tokens, self.length, self.used):
            about[[a, b]] = about[[b, a]]

    def _grow(self, width: int) -> None:
        """Room for `width` tokens a row."""
        if width <= self.capacity:
            return
        capacity = -(-width // PIECE) * PIECE
        for layer in self.blocks:
            for kind, old in enumerate(layer):
                new = old.new_zeros((self.rows, old.shape[1], capacity + 1, old.shape[3]))
                new[:, :, : self.capacity] = old[:, :, : self.capacity]
                layer[kind] = new
        more = np.full((self.rows, capacity - self.capacity), NOTHING, dtype=np.int64)
        self.tokens, self.capacity = np.concatenate([self.tokens, more], axis=1), capacity

    def read(self, first: int, ends: Sequence[int]) -> torch.Tensor:
        """Logits [B, V] after token ends[k] of rows first + k, whose tokens up to there the model now reads.

        Rows are padded on the left, so that the last column is every row's last token.
        """
        B, ends_B = len(ends), np.asarray(ends)
        held_B = self.length[first : first + B]
        L, width = int((ends_B - held_B).max()), int(ends_B.max())
        at = ends_B[:, None] - L + np.arange(L)  # [B, L] the position each column holds
        pad = at < held_B[:, None]
        ids = np.take_along_axis(self.tokens[first : first + B], np.where(pad, 0, at), axis=1)
        where = torch.from_numpy(np.where(pad, 0, at)).to(self.device)
        write = torch.from_numpy(np.where(pad, self.capacity, at)).to(self.device)
        mask = torch.arange(width, device=self.device) <= where.unsqueeze(-1)
        out = self.model(
            input_ids=torch.from_numpy(ids).to(self.device),
            attention_mask=mask.unsqueeze(1),
            position_ids=where,
            past_key_values=_Window(self, first, width, write),
            use_cache=True,
            logits_to_keep=1,
        )
        self.length[first : first + B] = ends_B
        return out.logits[:, -1]

    def append(self, tokens: Sequence[int]) -> None:
        """One more token on each live row, not yet read."""
        at = self.length[: self.live]
        self._grow(int(at.max()) + 1)
        self.tokens[np.arange(self.live), at] = tokens
