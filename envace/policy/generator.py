"""Batched sampling from a causal language model on one machine, for rollouts without an inference server.

Flows in: `Job`s (prompt ids and sampling settings). Flows out: one `Result` a job, in the same order: the ids
written, their log-probabilities under the distribution they were sampled from, and why the writing ended.
Invariant: a job with a seed draws the same random numbers whoever shares its batch; weights never change
inside a batch, and every result names the weight version that wrote it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from envace.types import FinishReason, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One continuation to write: `Job(prompt_ids=(5, 9), sampling=Sampling(max_tokens=32))`."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was written. `output_ids` ends with the end token when the model wrote one."""

    output_ids: tuple[int, ...]
    logprobs: tuple[
        float, ...
    ]  # [len(output_ids)], of the tempered and cut distribution; greedy: of temperature 1
    finish: FinishReason
    weight_version: int | None = None


class BatchGenerator:
    """Left-padded KV-cache sampling over a Hugging Face causal model.

    model: a `PreTrainedModel` (put into eval mode); end_ids close a sequence; max_batch bounds the sequences
    decoded together; seed feeds the jobs that bring no seed of their own.
    """

    def __init__(
        self, model: Any, end_ids: Iterable[int], pad_id: int, *, max_batch: int = 64, seed: int = 0
    ):
        self.model = model.eval()
        self.end_ids = frozenset(int(i) for i in end_ids)
        self.pad_id = int(pad_id)
        self.max_batch = max_batch
        self.context = int(getattr(model.config, "max_position_embeddings", 0) or 0)  # 0: unbounded
        self.version: int | None = None
        self.counters = {"batches": 0, "tokens_in": 0, "tokens_out": 0, "seconds": 0.0}
        self._shared = torch.Generator().manual_seed(seed)
        self._lock = threading.Lock()

    def generate(self, jobs: Sequence[Job]) -> list[Result]:
        """Write every job; results stand in the order of the jobs. Thread-safe; blocks while it works."""
        draws = {i: self._uniforms(job) for i, job in enumerate(jobs)}
        order = sorted(
            range(len(jobs)), key=lambda i: len(jobs[i].prompt_ids)
        )  # alike lengths waste less padding
        results: dict[int, Result] = {}
        for start in range(0, len(order), self.max_batch):
            chunk = order[start : start + self.max_batch]
            with self._lock:
                for i, result in zip(chunk, self._run([jobs[i] for i in chunk], [draws[i] for i in chunk])):
                    results[i] = result
        return [results[i] for i in range(len(jobs))]

    def load_state_dict(self, state: Mapping[str, Any], version: int | None = None) -> None:
        """Swap the weights between two batches. Raises RuntimeError when names or shapes do not fit."""
        with self._lock:
            missing, unexpected = self.model.load_state_dict(state, strict=False)
            tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
            if unexpected or set(missing) - tied:
                raise RuntimeError(
                    f"weights do not fit: missing {sorted(missing)[:4]}, unexpected {unexpected[:4]}"
                )
            self.version = version

    def _room(self, job: Job) -> int:
        """Tokens a job may write: its own cap, and what the context still holds."""
        left = self.context - len(job.prompt_ids) if self.context else job.sampling.max_tokens
        return max(0, min(job.sampling.max_tokens, left)) if job.prompt_ids else 0

    def _uniforms(self, job: Job) -> torch.Tensor:
        seed = job.sampling.seed
        if seed is None:
            with self._lock:
                return torch.rand(self._room(job), generator=self._shared, dtype=torch.float64)
        own = torch.Generator().manual_seed(seed % 2**63)
        return torch.rand(self._room(job), generator=own, dtype=torch.float64)

    @torch.no_grad()
    def _run(self, jobs: list[Job], draws: list[torch.Tensor]) -> list[Result]:
        began = time.perf_counter()
        batch = _Batch(self, jobs, draws)
        while batch.live:
            batch.step()
        self.counters["batches"] += 1
        self.counters["tokens_in"] += sum(len(j.prompt_ids) for j in jobs)
        self.counters["tokens_out"] += sum(len(w) for w in batch.written)
        self.counters["seconds"] += time.perf_counter() - began
        return [
            Result(output_ids=tuple(w), logprobs=tuple(p), finish=f, weight_version=self.version)
            for w, p, f in zip(batch.written, batch.logprobs, batch.finish)
        ]


class _Batch:
    """The state of one batch while it is decoded. `live` holds the job index of each remaining row."""

    def __init__(self, owner: BatchGenerator, jobs: list[Job], draws: list[torch.Tensor]):
        self.model, self.end_ids, self.pad_id = owner.model, owner.end_ids, owner.pad_id
        self.device = next(owner.model.parameters()).device
        self.jobs, self.draws = jobs, draws
        self.written: list[list[int]] = [[] for _ in jobs]
        self.logprobs: list[list[float]] = [[] for _ in jobs]
        self.finish = [FinishReason.LENGTH] * len(jobs)
        self.live = [i for i in range(len(jobs)) if len(draws[i])]
        self.cache = None
        if self.live:
            self._left_pad()

    def _left_pad(self) -> None:
        prompts = [self.jobs[i].prompt_ids for i in self.live]
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        self.ids, self.mask = ids.to(self.device), mask.to(self.device)
        self.positions = (self.mask.cumsum(1) - 1).clamp(min=0)

    def step(self) -> None:
        """One token for every live row."""
        out = self.model(
            input_ids=self.ids,
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache = out.past_key_values
        uniforms = torch.stack([self.draws[i][len(self.written[i])] for i in self.live])
        tokens, logprobs = sample(
            out.logits[:, -1].float().cpu(), [self.jobs[i].sampling for i in self.live], uniforms
        )
        keep = [row for row, i in enumerate(self.live) if self._write(i, tokens[row], logprobs[row])]
        self._advance(tokens, keep)

    def _write(self, i: int, token: int, logprob: float) -> bool:
        """Note one token of job i; False when that ends the job."""
        self.written[i].append(token)
        self.logprobs[i].append(logprob)
        if token in self.end_ids:
            self.finish[i] = FinishReason.STOP
            return False
        return len(self.written[i]) < len(self.draws[i])

    def _advance(self, tokens: list[int], keep: list[int]) -> None:
        """Drop the finished rows and make the written tokens the next input."""
        if len(keep) < len(self.live) and keep:
            rows = torch.tensor(keep, device=self.device)
            self.cache.batch_select_indices(rows)
            self.mask, self.positions = self.mask[rows], self.positions[rows]
        self.live = [self.live[row] for row in keep]
        if not keep:
            return
        self.ids = torch.tensor([[tokens[row]] for row in keep], device=self.device)
        self.mask = torch.cat([self.mask, self.mask.new_ones((len(keep), 1))], dim=1)
        self.positions = self.positions[:, -1:] + 1


def sample(
    logits: torch.Tensor, settings: Sequence[Sampling], uniforms: torch.Tensor
) -> tuple[list[int], list[float]]:
    """One token a row by inverting the cumulative distribution at the row's uniform number.

    logits [B, V] float, uniforms [B] in [0, 1). Returns tokens [B] and their log-probabilities [B].
    """
    temperature = torch.tensor([s.temperature for s in settings], dtype=logits.dtype)
    greedy = temperature <= 0
    scaled = logits / torch.where(greedy, torch.ones_like(temperature), temperature).unsqueeze(1)
    for row, s in enumerate(settings):
        if not greedy[row] and (s.top_k > 0 or s.top_p < 1.0):
            scaled[row] = _cut(scaled[row], s.top_k, s.top_p)
    logp = scaled.log_softmax(-1)
    heap = logp.double().exp().cumsum(-1)
    drawn = torch.searchsorted(heap, (uniforms * heap[:, -1]).unsqueeze(1), right=True).squeeze(1)
    drawn = drawn.clamp(max=logits.shape[1] - 1)
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens.tolist(), logp.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()


def _cut(row: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """A row of logits [V] with everything outside top-k, then outside the top-p nucleus, at -inf."""
    values, order = row.sort(descending=True)
    gone = torch.zeros_like(values, dtype=torch.bool)
    if 0 < top_k < len(values):
        gone[top_k:] = True
    mass = values.masked_fill(gone, -torch.inf).softmax(-1).cumsum(-1)
    gone[1:] |= mass[:-1] >= top_p  # the token that crosses the border stays, and at least one always does
    return row.index_fill(0, order[gone], -torch.inf)


class AsyncBatcher:
    """Turns concurrent `submit`s into batches, decoded on a worker thread beside the event loop.

    While one batch decodes, arrivals wait; then the oldest leads the next batch and those of the most similar
    prompt length join it. When a batch raises, its jobs and all waiting ones fail at once with that error; a
    later submit starts afresh.
    """

    def __init__(self, generator: BatchGenerator, *, window_s: float = 0.004):
        self.generator = generator
        self.window_s = window_s  # how long the first arrival waits for company
        self._waiting: list[tuple[Job, asyncio.Future[Result]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def submit(self, job: Job) -> Result:
        """Write one job. Raises what the generator raised."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a new asyncio.run: futures of a closed loop can never be answered
            self._loop, self._waiting, self._worker = loop, [], None
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((job, future))
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        return await future

    async def _work(self) -> None:
        batch: list[tuple[Job, asyncio.Future[Result]]] = []
        try:
            await asyncio.sleep(self.window_s)
            while batch := self._next_batch():
                results = await asyncio.to_thread(self.generator.generate, [job for job, _ in batch])
                for (_, future), result in zip(batch, results):
                    if not future.done():
                        future.set_result(result)
                await asyncio.sleep(self.window_s)  # the answered usually ask again at once
        except BaseException as error:
            self._fail(batch, error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _next_batch(self) -> list[tuple[Job, asyncio.Future[Result]]]:
        self._waiting = [(job, future) for job, future in self._waiting if not future.done()]
        if not self._waiting:
            return []
        length = len(self._waiting[0][0].prompt_ids)
        rank = sorted(
            range(len(self._waiting)), key=lambda i: (abs(len(self._waiting[i][0].prompt_ids) - length), i)
        )
        chosen = set(rank[: self.generator.max_batch])
        batch = [entry for i, entry in enumerate(self._waiting) if i in chosen]
        self._waiting = [entry for i, entry in enumerate(self._waiting) if i not in chosen]
        return batch

    def _fail(self, batch: list[tuple[Job, asyncio.Future[Result]]], error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in [*batch, *waiting]:
            if not future.done():
                with contextlib.suppress(asyncio.InvalidStateError):
                    future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(
                        error
                    )
