"""A small byte-level BPE made for one corpus, in the shape of Qwen3's tokenizer.

Flows in: the texts the policy will read and write. Flows out: a `PreTrainedTokenizerFast` with Qwen3's
special tokens, the chat template beside this file, and single tokens for the corpus's JSON scaffolding and
one-word values.
Invariant: any text survives encode and decode; the same texts give the same tokenizer.

Why scaffolding tokens: what stands between two values of a JSON document, such as `", "arguments": {"id": "`,
is the same everywhere, so spelling it out costs a tiny model most of its attention and most of its chances to
slip. Values stay ordinary text, digits one by one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("think", "tool_call", "tool_response", "execution_result", "tools")
MARKS = tuple(f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/"))
PAD, END = SPECIAL[0], SPECIAL[2]
TEMPLATE = Path(__file__).with_name("chat_template.jinja")

LEAF = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|-?\d[\d.eE+-]*|true|false|null')
"""Of a JSON document; group 2 matched: it is a key, no value."""
# Line breaks stay together whatever follows, so a prompt that ends with some is a prefix of its continuation.
WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
PIECE = re.compile(r"[A-Za-z]+|\d|[^\sA-Za-z\d]+")
ONE_WORD = re.compile(r"\W?([A-Za-z_]{3,})\Z")
SLOT = "\0"


def build_tokenizer(texts: Sequence[str], *, vocab: int, context: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocab` tokens for the texts. `context` is stated as its longest input.

    texts: rendered prompts and responses, chat marks included.
    """
    runs, words = scaffolding(texts, room=max(0, vocab - 256 - len(SPECIAL) - len(MARKS)))
    fixed = [*SPECIAL, *MARKS, *runs]
    core = _train(_without(texts, fixed, words), vocab - len(fixed) - len(words))
    return _dress(core, runs, words, context)


def scaffolding(texts: Iterable[str], room: int) -> tuple[list[str], list[str]]:
    """The JSON runs and the one-word values worth a token of their own, at most half of `room` together."""
    runs: Counter[str] = Counter()
    words: Counter[str] = Counter()
    seen: Counter[str] = Counter(doc for text in texts for doc in json_documents(text))
    for doc, n in seen.items():
        leaves = [m[1] for m in LEAF.finditer(doc) if m[1] and not m[2]]
        for run in LEAF.sub(_slot, doc).split(SLOT):
            if len(run) >= 3 and run.isascii():
                runs[run] += n
        for match in filter(None, map(ONE_WORD.match, leaves)):
            words[match[1]] += n
    saved = {run: n * (len(PIECE.findall(run)) - 1) for run, n in runs.items()}
    best_runs = [r for r in sorted(saved, key=lambda r: (-saved[r], r)) if saved[r] >= 4]
    best_words = [w for w in sorted(words, key=lambda w: (-words[w], w)) if words[w] >= 2]
    best_runs = best_runs[: min(96, room // 4)]
    return best_runs, best_words[: min(256, room // 2 - len(best_runs))]


def _slot(leaf: re.Match[str]) -> str:
    """A value's place; keys, and the quotes around a string, belong to the scaffolding."""
    if leaf[2]:
        return leaf[0]
    return f'"{SLOT}"' if leaf[0].startswith('"') else SLOT


def json_documents(text: str) -> Iterator[str]:
    """The outermost JSON objects and arrays in a text, as they are written there."""
    decoder, at = json.JSONDecoder(), 0
    while match := re.compile(r"[{\[]").search(text, at):
        try:
            _, at = decoder.raw_decode(text, match.start())
            yield text[match.start() : at]
        except ValueError:
            at = match.end()


def _without(texts: Iterable[str], fixed: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """The texts cut where a fixed token stands, so that no merge is spent on what never reaches the BPE."""
    parts = [re.escape(t) for t in sorted(fixed, key=len, reverse=True)] + [rf"\b{w}\b" for w in words]
    cut = re.compile("|".join(parts))
    for text in texts:
        yield from filter(None, cut.split(text))


def _train(pieces: Iterable[str], size: int) -> Tokenizer:
    core = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(WORDS), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(pieces, trainer)
    return core


def _dress(
    core: Tokenizer, runs: Sequence[str], words: Sequence[str], context: int
) -> PreTrainedTokenizerFast:
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    core.add_tokens([AddedToken(t, normalized=False) for t in (*MARKS, *runs)])
    core.add_tokens([AddedToken(w, normalized=False, single_word=True) for w in words])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return tokenizer
