"""Answering the requests of real rehearsed episodes: our generator beside transformers' `generate`.

Flows in: a policy folder. Flows out: a table, and JSON where `--out` says.
Invariant: both answer the same prompts with the same weights at temperature 1 with at most as many sequences beside
each other, and both know all requests of a wave before it starts; what each wrote is counted, as sampling ends where
it ends. The order alternates from round to round.

A wave holds the k-th request of every episode; `generate` is given it as left-padded batches of like length.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import times, write_json
from envace.errors import boundary
from envace.policy.generator import BatchGenerator, Job
from envace.policy.local import end_ids, load
from envace.policy.warmstart import BUNDLED
from envace.types import Sampling

PEER, OURS = "transformers generate", "envace"
Waves = list[list[Job]]


def record(folder: Path, groups: int, members: int) -> Waves:
    """The requests of `groups` x `members` episodes of the desk, rehearsed by the policy itself."""
    from envace.config import RolloutParams
    from envace.config.method import resolve_method
    from envace.judge import RuleJudge
    from envace.policy.local import LocalPolicy
    from envace.rollout.pool import episode_job, run_pool
    from envace.rollout.prompts import load_prompt_set
    from envace.rollout.sources import make_source
    from envace.worlds.desk.tasks import generate

    policy, asked = LocalPolicy(folder, concurrency=groups * members), {}

    class Recorder:
        async def generate(self, request: Any) -> Any:
            job = Job(prompt_ids=tuple(request.prompt_ids), sampling=request.sampling)
            asked.setdefault(request.episode_id, []).append(job)
            return await policy.generate(request)

    method, params, prompts = resolve_method("envace", {}), RolloutParams(), load_prompt_set("compact")
    recorder = Recorder()
    jobs = [
        episode_job(
            task, episode_id=f"{task.id}-{k}", group_id=task.id, seed=k, method=method, params=params, judge=RuleJudge(),
            make_source=lambda task=task: make_source(task, method, recorder, policy.renderer, params),
            policy=recorder, renderer=policy.renderer, prompt_set=prompts, sampling=Sampling(max_tokens=128),
        )
        for task in generate(7, "train", groups)
        for k in range(members)
    ]  # fmt: skip
    asyncio.run(run_pool(jobs, concurrency=len(jobs)))
    longest = max(map(len, asked.values()))
    return [[jobs[k] for jobs in asked.values() if len(jobs) > k] for k in range(longest)]


def ours(model: Any, tokenizer: Any, waves: Waves, batch: int) -> Callable[[], int]:
    def run() -> int:
        generator = BatchGenerator(model, end_ids(model, tokenizer), max_batch=batch)
        return sum(len(r.output_ids) for wave in waves for r in generator.generate(wave))

    return run


def peer(model: Any, tokenizer: Any, waves: Waves, batch: int) -> Callable[[], int]:
    def run() -> int:
        written = 0
        for wave in waves:
            prompts = sorted((job.prompt_ids for job in wave), key=len)
            for start in range(0, len(prompts), batch):
                written += _generate(model, tokenizer, prompts[start : start + batch])
        return written

    return run


def _generate(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]]) -> int:
    """Tokens one call of `generate` wrote, padding after an end not counted."""
    import torch

    width, pad = max(map(len, prompts)), tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=128, do_sample=True)
    return int((out[:, width:] != pad).sum())


def main() -> None:
    """Compare sampling with transformers."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=main.__doc__)
    cli.add_argument("--policy", type=Path, default=BUNDLED)
    cli.add_argument("--groups", type=int, default=16)
    cli.add_argument("--members", type=int, default=8)
    cli.add_argument("--batch", type=int, default=64, help="most sequences beside each other")
    cli.add_argument("--rounds", type=int, default=3)
    cli.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = cli.parse_args()
    with boundary("benchmarks.sampling"):
        waves = record(args.policy, args.groups, args.members)
        entries = {}
        for name, entry in (
            (PEER, peer),
            (OURS, ours),
        ):  # each its own copy: ours changes the attention it is given
            entries[name] = entry(*load(args.policy), waves, args.batch)
        rates: dict[str, list[float]] = {name: [] for name in entries}
        for k in range(args.rounds):
            for name in list(entries) if k % 2 == 0 else list(entries)[::-1]:
                began = time.perf_counter()
                written = entries[name]()
                rates[name].append(written / (time.perf_counter() - began))
        median = {name: statistics.median(values) for name, values in rates.items()}
        print(
            f"{sum(map(len, waves))} requests of {args.groups * args.members} episodes, {args.rounds} rounds"
        )
        for name, rate in median.items():
            print(f"  {name:24} {rate:8.0f} tokens written a second  {rate / median[PEER]:5.2f}x")
        if args.out:
            requests, spent = sum(map(len, waves)), {name: 1e6 / rate for name, rate in median.items()}
            found = {
                "requests": requests, "batch": args.batch, "tokens_per_second": rates, "median_us": spent,
                "times": times(spent, OURS),
            }  # fmt: skip
            write_json(args.out, {"results": [found]}, ("torch", "transformers"), {})


if __name__ == "__main__":
    sys.exit(main())
