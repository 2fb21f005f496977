"""Sampling from a causal language model on one machine, for rollouts without an inference server.

A job with a seed draws the same random numbers whoever is written beside it; weights never change
while anything is being written, and every result names the weight version that wrote it.

Jobs join and leave between two tokens, and none reads what another has read already: an episode's next prompt
begins with the last one, and the prompts of a group begin alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from transformers import PreTrainedModel

from envace.policy.slots import Slots
from envace.types import FinishReason, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """One continuation to write: `GenerationJob(prompt_ids=(5, 9), sampling=Sampling(max_tokens=32))`."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stopped: Callable[[Sequence[int]], bool] | None = None
    """Asked after each token with all that were written: true ends the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """What was written."""

    output_ids: tuple[int, ...]
    """With the end token when the model wrote one."""
    logprobs: tuple[float, ...]
    """[len(output_ids)], of the tempered and cut distribution; greedy: of temperature 1."""
    finish: FinishReason
    weight_version: int | None = None


@dataclass(slots=True)
class _Row:
    """A job while it is written."""

    key: Hashable
    job: GenerationJob
    draws: torch.Tensor
    """One uniform number for each token it may write."""
    written: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason = FinishReason.LENGTH

    @property
    def ends(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.job.prompt_ids) + len(self.written)


Take = Callable[[int], Sequence[tuple[Hashable, GenerationJob]]]
"""Gives at most so many of the jobs that are there now."""
Done = Callable[[Hashable, GenerationResult], None]
PADDING = 512
"""Tokens of padding worth less than one more call of the model."""
COUNTERS = ("jobs", "tokens_in", "tokens_read", "tokens_out", "steps", "rows", "seconds")
"""Jobs done; tokens of their prompts, of those read, and written; steps, rows over all steps; seconds of
work.
"""


class BatchGenerator:
    """Writes up to `max_batch` jobs beside each other with a Hugging Face causal model.

    model: put into eval mode; end_ids close a sequence; `max_batch` more sequences are kept for
    their prefixes; seed feeds the jobs that bring no seed of their own. Raises ValueError for a model whose
    layers do not all attend to everything before.
    """

    def __init__(self, model: PreTrainedModel, end_ids: Iterable[int], *, max_batch: int = 64, seed: int = 0):
        self.model = model.eval()
        self.end_ids = frozenset(int(i) for i in end_ids)
        self.max_batch = max_batch
        self.context = int(getattr(model.config, "max_position_embeddings", 0) or 0)  # 0: unbounded
        self.version: int | None = None
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self._slots = Slots(self.model, 2 * max_batch)
        self._shared = torch.Generator().manual_seed(seed)
        self._lock = threading.Lock()

    def generate(self, jobs: Sequence[GenerationJob]) -> list[GenerationResult]:
        """Write every job; results stand in the order of the jobs. Thread-safe; blocks while it works."""
        waiting = iter(enumerate(jobs))
        results: dict[Hashable, GenerationResult] = {}
        self.serve(lambda n: list(islice(waiting, n)), results.__setitem__)
        return [results[i] for i in range(len(jobs))]

    @torch.no_grad()
    def serve(self, take: Take, done: Done) -> None:
        """Write what `take` gives, asked again between any two tokens, until it gives nothing and nothing is
        open.
        """
        with self._lock:
            began, rows = time.perf_counter(), []
            try:
                while True:
                    new = take(self.max_batch - len(rows))
                    self._join(rows, new, done)
                    if not rows and not new:
                        return
                    if not rows:
                        continue
                    self._slots.append([row.written[-1] for row in rows])
                    self._write(rows, 0, self._slots.read(0, [row.ends for row in rows]))
                    self.counters["steps"] += 1
                    self.counters["rows"] += len(rows)
                    self._leave(rows, done)
            finally:
                while self._slots.live:  # only after an error
                    self._slots.close(self._slots.live - 1)
                self.counters["seconds"] += time.perf_counter() - began

    def load_state_dict(self, state: Mapping[str, torch.Tensor], version: int | None = None) -> None:
        """Swap the weights while nothing is written. Raises RuntimeError when names or shapes do not fit."""
        with self._lock:
            missing, unexpected = self.model.load_state_dict(state, strict=False)
            tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
            if unexpected or set(missing) - tied:
                raise RuntimeError(
                    f"weights do not fit: missing {sorted(missing)[:4]}, unexpected {unexpected[:4]}"
                )
            self._slots.forget()
            self.version = version

    def _uniforms(self, job: GenerationJob) -> torch.Tensor:
        """A random number for each token a job may write: its own cap, and what the context still holds."""
        seed, room = job.sampling.seed, job.sampling.max_tokens if job.prompt_ids else 0
        if self.context:
            room = max(0, min(room, self.context - len(job.prompt_ids)))
        source = self._shared if seed is None else torch.Generator().manual_seed(seed % 2**63)
        return torch.rand(room, generator=source, dtype=torch.float64)

    def _result(self, row: _Row) -> GenerationResult:
        self.counters["jobs"] += 1
        self.counters["tokens_in"] += len(row.job.prompt_ids)
        self.counters["tokens_out"] += len(row.written)
        return GenerationResult(
            output_ids=tuple(row.written),
            logprobs=tuple(row.logprobs),
            finish=row.finish,
            weight_version=self.version,
        )

    def _join(self, rows: list[_Row], new: Sequence[tuple[Hashable, GenerationJob]], done: Done) -> None:
        """New jobs read what no row holds of their prompts and write their first token."""
        joining = []
        for key, job in new:
            row = _Row(key, job, self._uniforms(job))
            if len(row.draws):
                joining.append(row)
            else:
                done(key, self._result(row))
        # a job that begins like another one of the same batch waits for it and reads the rest
        firsts, twins, seen = [], [], set[tuple[int, ...]]()
        for row in joining:
            (twins if row.job.prompt_ids in seen else firsts).append(row)
            seen.add(row.job.prompt_ids)
        for batch in filter(None, (firsts, twins)):
            batch.sort(key=lambda row: len(row.job.prompt_ids))
            held = self._slots.open([row.job.prompt_ids for row in batch])
            first = len(rows)
            rows.extend(batch)
            ends = [row.ends for row in batch]
            self.counters["tokens_read"] += int(sum(ends) - held.sum())
            for start, stop in _cuts([end - int(h) for end, h in zip(ends, held)]):
                self._write(rows, first + start, self._slots.read(first + start, ends[start:stop]))
        self._leave(rows, done)

    def _write(self, rows: list[_Row], first: int, logits: torch.Tensor) -> None:
        """One token for rows [first, first + B) from logits [B, V]."""
        some = rows[first : first + len(logits)]
        uniforms = torch.stack([row.draws[len(row.written)] for row in some])
        tokens, logprobs = sample(logits.float().cpu(), [row.job.sampling for row in some], uniforms)
        for row, token, logprob in zip(some, tokens, logprobs):
            row.written.append(token)
            row.logprobs.append(logprob)
            if token in self.end_ids or (row.job.stopped and row.job.stopped(row.written)):
                row.finish = FinishReason.STOP

    def _leave(self, rows: list[_Row], done: Done) -> None:
        """Rows that ended or have no room left give their place to the last ones."""
        for at in range(len(rows) - 1, -1, -1):
            row = rows[at]
            if row.finish is FinishReason.STOP or len(row.written) == len(row.draws):
                rows[at] = rows[self._slots.close(at)]
                rows.pop()
                done(row.key, self._result(row))


def _cuts(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Runs [start, stop) of neighbours, cut where padding them to one length would waste more than
    PADDING."""
    cuts, start = [], 0
    for stop in range(1, len(lengths) + 1):
        some = lengths[start : stop + 1]
        if stop == len(lengths) or max(some) * len(some) - sum(some) > PADDING:
            cuts.append((start, stop))
            start = stop
    return cuts


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
