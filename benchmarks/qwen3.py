"""Qwen3's own tokenizer, out of files that are at hand without a download.

Flows in: `qwen.tiktoken`, which the package dashscope carries, and Qwen3's chat template, which the tests keep; or other
paths. Flows out: a fast tokenizer.
Invariant: ids are Qwen3's own: ranks are the ids of ordinary tokens, special tokens begin at 151643.
"""

from __future__ import annotations

import base64
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).parents[1] / "tests/chat/qwen3.jinja"
FIRST_SPECIAL = 151643
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
MARKS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip  # these follow the special ones
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def packaged(package: str, inside: str) -> Path | None:
    """A file of an installed package, which is not imported; None when it is not there."""
    spec = find_spec(package)
    places = spec.submodule_search_locations or [] if spec else []
    return next((path for place in places if (path := Path(place) / inside).is_file()), None)


def vocabulary_file() -> Path | None:
    return packaged("dashscope", "resources/qwen.tiktoken")


def read_ranks(vocabulary: Path) -> dict[bytes, int]:
    """Ordinary tokens and their ids."""
    lines = (line.split() for line in vocabulary.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def qwen3_tokenizer(vocabulary: Path, template: Path = TEMPLATE) -> Any:
    """A `PreTrainedTokenizerFast` with Qwen3's ids (some seconds)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ranks = read_ranks(vocabulary)
    shown = _shown_bytes()
    names = {token: "".join(shown[b] for b in token) for token in ranks}
    merges = [(names[a], names[b]) for token in ranks if len(token) > 1 for a, b in [_parts(ranks, token)]]
    core = Tokenizer(models.BPE(vocab={names[token]: rank for token, rank in ranks.items()}, merges=merges))
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    core.add_tokens([AddedToken(t, normalized=False) for t in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=131072
    )
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def open_tokenizer(vocabulary: Path | None = None, template: Path = TEMPLATE) -> tuple[Any, str]:
    """Qwen3's where its vocabulary is at hand, else the bundled one; and which it is."""
    if vocabulary := vocabulary or vocabulary_file():
        return qwen3_tokenizer(vocabulary, template), "Qwen3"
    from transformers import AutoTokenizer

    from envace.policy.warmstart import BUNDLED

    bundled = AutoTokenizer.from_pretrained(BUNDLED)
    bundled.model_max_length = 1_000_000
    return bundled, "bundled"


def _parts(ranks: dict[bytes, int], token: bytes) -> tuple[bytes, bytes]:
    """The last merge that made a token: byte pairs joined in order of rank until two parts are left."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        known = [(ranks.get(a + b, FIRST_SPECIAL), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        _, i = min(pair for pair in known if pair[0] < ranks[token])
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0], parts[1]


def _shown_bytes() -> list[str]:
    """The character byte-level tokenizers write for each byte: itself where it can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in seen else chr(next(hidden)) for b in range(256)]
