"""The tiny policy: a Qwen3-architecture model from scratch, warm-started on the desk's expert.

Flows in: `Params`. Flows out: a Hugging Face folder (weights, configuration, tokenizer with chat template)
and its card, the `start` every trained policy is compared with.
Invariant: the same parameters give the same corpus, tokenizer and batches; the folder appears whole or not at
all. The warm start sees only tasks of the split "warm".
"""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from envace.chat.renderer import HFRenderer
from envace.config import Params, TinyParams
from envace.policy.card import write_card
from envace.types import PolicyRef, Role, replace
from envace.warmstart.corpus import PLAYED, WarmSample, collect, texts_of
from envace.warmstart.tokenizer import END, build_tokenizer
from envace.worlds.desk.tasks import generate

PROMPT_WEIGHT = 0.3
"""Of a token the policy only reads: learning to read is most of learning to copy."""
TOKENIZER_TASKS = 160
"""Plays that the tokenizer is made from."""
WARMUP = 0.1
"""Share of the updates over which the learning rate rises."""
COPYING = 0.33
"""Share of the updates that see only responses to be copied from records: copying first, then the rest."""
ACT_SHARE = 0.65
"""Of the later draws: acting is the harder role, and one sequence in three by count."""
FLOOR = 0.1
"""Of the learning rate at the last update."""
WINDOW = 8
"""Batches drawn together and cut by length."""

OnUpdate = Callable[[dict[str, float]], None]


def build_start(params: Params, out: Path, progress: OnUpdate | None = None) -> PolicyRef:
    """Make tokenizer and model, warm-start, save to `out`. Returns the ref on the card.

    progress receives {"step", "steps", "loss", "answer_loss", "tokens", "seconds"} every few updates.
    """
    tiny, began = params.policy.tiny, time.monotonic()
    texts = texts_of(generate(params.desk.seed, "warm", tiny.tasks)[:TOKENIZER_TASKS], params, params.seed)
    tokenizer = build_tokenizer(texts, vocab=tiny.vocab, context=params.rollout.context)
    model = make_model(tiny, tokenizer, params.rollout.context, params.seed)
    if tiny.updates:
        batches = curriculum(_samples(params, tokenizer), tiny.batch, tiny.updates, params.seed)
        warm_start(model, batches, tiny, tokenizer.pad_token_id, progress, began)
    return save(model, tokenizer, Path(out), PolicyRef(kind="tiny", uri=str(out), name="start"))


def continue_start(
    params: Params, start: Path, out: Path, seed: int, progress: OnUpdate | None = None
) -> PolicyRef:
    """More supervised updates from the weights in `start`, on the same texts in another order; saves to
    `out`.
    """
    began = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    tiny = replace(params.policy.tiny, updates=params.sft.updates, lr=params.sft.lr)
    batches = mixed(_samples(params, tokenizer), tiny.batch, tiny.updates, seed)
    warm_start(model, batches, tiny, tokenizer.pad_token_id, progress, began)
    return save(model, tokenizer, Path(out), PolicyRef(kind="trained", uri=str(out), step=tiny.updates))


def _samples(params: Params, tokenizer: PreTrainedTokenizerBase) -> list[WarmSample]:
    tasks = generate(params.desk.seed, "warm", params.policy.tiny.tasks)
    renderer = HFRenderer(tokenizer, params.rollout.enable_thinking)
    return collect(tasks, renderer, tokenizer.convert_tokens_to_ids(END), params, params.seed)


def make_model(
    tiny: TinyParams, tokenizer: PreTrainedTokenizerBase, context: int, seed: int
) -> PreTrainedModel:
    """A Qwen3 model with random weights for the tokenizer's vocabulary."""
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=tiny.hidden,
        intermediate_size=3 * tiny.hidden,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.heads // 2 if tiny.heads % 2 == 0 else tiny.heads,
        head_dim=tiny.hidden // tiny.heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=pad,
        eos_token_id=end,
        bos_token_id=None,
        # the usual 0.02 suits wide models; a narrow one would start asleep
        initializer_range=0.8 * tiny.hidden**-0.5,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    neutral = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad, **neutral)
    return model


def warm_start(
    model: PreTrainedModel,
    batches: Iterable[Sequence[WarmSample]],
    tiny: TinyParams,
    pad_id: int,
    progress: OnUpdate | None,
    began: float,
) -> None:
    """One step of AdamW on each of `tiny.updates` batches; `began` is what the seconds told count from."""
    torch.set_num_threads(tiny.threads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=tiny.lr, betas=(0.9, 0.95), weight_decay=0.01)
    tokens = 0
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = tiny.lr * schedule(step, tiny.updates)
        loss, answer_loss = _loss(model, batch, pad_id)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += sum(len(s.ids) for s in batch)
        if progress and (step % 10 == 9 or step + 1 == tiny.updates):
            told = {"step": step + 1, "steps": tiny.updates, "loss": loss.item()}
            told |= {"answer_loss": answer_loss.item(), "tokens": tokens}
            progress({**told, "seconds": time.monotonic() - began})
    model.eval()


def _loss(
    model: PreTrainedModel, batch: Sequence[WarmSample], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean cross-entropy, and the plain mean on answer tokens.

    Padding is on the right, where a causal model cannot see it, so no attention mask is needed.
    """
    width = max(len(s.ids) for s in batch)
    ids = torch.full((len(batch), width), pad_id)
    weight = torch.zeros((len(batch), width))
    for row, s in enumerate(batch):
        ids[row, : len(s.ids)] = torch.tensor(s.ids)
        weight[row, : len(s.ids)] = torch.where(torch.tensor(s.answer), 1.0, PROMPT_WEIGHT)
    kept = weight[:, 1:] > 0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden[kept])
    each = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][kept], reduction="none")
    w = weight[:, 1:][kept]
    return (each * w).sum() / w.sum(), each[w == 1.0].mean().detach()


def schedule(step: int, steps: int) -> float:
    """Share of the learning rate: a linear rise, then half a cosine down to FLOOR."""
    rise = min(1.0, (step + 1) / max(1, round(WARMUP * steps)))
    return rise * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def curriculum(
    samples: Sequence[WarmSample], batch: int, updates: int, seed: int
) -> Iterator[list[WarmSample]]:
    """Batches of responses that follow from the records shown, then of all samples.

    Those are short and mostly copies: within a hundred updates they teach to look things up in the prompt,
    which takes many times as long in the full mix.
    """
    first = [s for s in samples if s.role is Role.REHEARSE and s.episode_id.startswith(PLAYED)]
    n_first = round(COPYING * updates) if first else 0
    yield from draws(first, batch, n_first, seed)
    yield from mixed(samples, batch, updates - n_first, seed + 1)


def mixed(samples: Sequence[WarmSample], batch: int, updates: int, seed: int) -> Iterator[list[WarmSample]]:
    """Batches of all samples, ACT with its own share."""
    act = sum(s.role is Role.ACT for s in samples)
    share = ACT_SHARE if 0 < act < len(samples) else 0.5
    odds = [share / act if s.role is Role.ACT else (1 - share) / (len(samples) - act) for s in samples]
    yield from draws(samples, batch, updates, seed, odds)


def draws(
    samples: Sequence[WarmSample], batch: int, updates: int, seed: int, odds: Sequence[float] | None = None
) -> Iterator[list[WarmSample]]:
    """`updates` batches; a window of them is drawn at random, then cut by length to save padding."""
    rng = random.Random(seed)
    left = updates
    while left:
        pool = sorted(rng.choices(samples, odds, k=batch * WINDOW), key=lambda s: len(s.ids))
        order = list(range(WINDOW))
        rng.shuffle(order)
        for k in order[: min(WINDOW, left)]:
            yield pool[k * batch : (k + 1) * batch]
        left -= min(WINDOW, left)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path, ref: PolicyRef) -> PolicyRef:
    """Write the folder beside its place, then move it there; the card is written last."""
    half = out.with_name(f".{out.name}.part")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    model.save_pretrained(half, safe_serialization=True)
    tokenizer.save_pretrained(half)
    for weights in half.glob("*.safetensors"):
        weights.chmod(0o644)  # written private; the rest of the folder is readable
    ref = write_card(half, ref)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(half, out)
    return ref
