"""Private rehearsal before the one committed run.

Flows in: a served policy and held-out tasks. Flows out: an `Outcome` with the attempts and what they cost.
Invariant: every point commits with the same seeds on the same tasks; zero rehearsals are the same code
without a memory, so one control serves every mode.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from envace.track.traces import of_episodes
from envace.types import Attempt, Memory, Task
from tasks.evaluation import Outcome, Ticker, choose, commit, score_samples
from tasks.rows import read_split
from tasks.run import Run
from tasks.serving import Served, open_policy
from tasks.tracking import trace_episodes

PARALLEL_TASKS = 16  # tasks that rehearse at once
Lessons = dict[tuple[str, int], tuple[list[Attempt], Memory]]  # (task, trial) -> what was tried and learned


@task(cache_policy=NO_CACHE)
def rehearse_and_commit(run: Run, point: str) -> Outcome:
    """Private rehearsals a task and trial as `point` says, then one real execution told what they taught."""
    began, p = time.monotonic(), run.params
    mode, n = read_point(point)
    tasks = choose(read_split(run, "held"), p.tts.limit, p.eval.seed)
    served = open_policy(run, p.tts.policy)
    lessons = asyncio.run(_rehearse_all(run, served, tasks, mode, n)) if n else {}
    private = [a.episode for tried, _ in lessons.values() for a in tried]
    trace_episodes(run, of_episodes(private, {"envace.policy": p.tts.policy}), kind="rehearsal")
    memory_for = (lambda job, trial: lessons[job.id, trial][1]) if n else None
    samples, episodes = asyncio.run(commit(run, served, tasks, p.tts.trials, memory_for))
    variant = f"rehearse-{point}" if n else "plain"
    scores = score_samples(run, served, tasks, p.tts.trials, samples, p.tts.policy, variant)
    spent = rehearsal_counts(lessons.values())
    run.say(describe(spent))
    run.metrics({f"tts/rehearsal_{k}": float(v) for k, v in spent.items()})
    ordered = sorted(lessons.items(), key=lambda kv: kv[0])
    memories = [{"task": name, "trial": trial, "memory": m.text} for (name, trial), (_, m) in ordered]
    run.artifact("memories.jsonl", "".join(json.dumps(row) + "\n" for row in memories))
    attempts = [
        {"task": name, "trial": trial, "memory": memory, "attempt": attempt}
        for (name, trial), (tried, memory) in ordered
        for attempt in tried
    ]
    return Outcome(scores, samples, episodes, attempts, time.monotonic() - began, {"rehearsal": spent})


def read_point(point: str) -> tuple[str, int]:
    """`parallel-2` as ("parallel", 2), `plain-0` as ("plain", 0)."""
    mode, _, n = point.rpartition("-")
    return mode, int(n)


async def _rehearse_all(run: Run, served: Served, tasks: Sequence[Task], mode: str, n: int) -> Lessons:
    from envace.bench.worlds import trial_seed
    from envace.rollout.prompts import load_prompt_set
    from envace.tts.rehearse import rehearse

    p, gate = run.params, asyncio.Semaphore(PARALLEL_TASKS)
    prompts, tick = load_prompt_set(p.rollout.prompt_set), Ticker(run, "tasks rehearsed")
    lessons: Lessons = {}

    async def one(job: Task, trial: int) -> None:
        async with gate:
            lessons[job.id, trial] = await rehearse(
                job,
                policy=served.policy,
                renderer=served.renderer,
                budget=p.tts,
                mode=mode,
                n=n,
                method=p.played_method(served.played_as),
                params=p.rollout,
                prompt_set=prompts,
                seed=trial_seed(p.eval.seed, job.id, trial),
            )
        tick(len(lessons), len(tasks) * p.tts.trials)

    await asyncio.gather(*(one(job, trial) for job in tasks for trial in range(p.tts.trials)))
    return lessons


def rehearsal_counts(lessons: Iterable[tuple[Sequence[Attempt], Memory]]) -> dict[str, int]:
    """What the rehearsals came to: how many wrote what they were asked for, and the tokens they took.

    The others fell back: a self-evaluation or condensation malformed twice is replaced by a digest made here.
    """
    lessons = list(lessons)
    attempts = [a for tried, _ in lessons for a in tried]
    return {
        "runs": len(lessons),
        "attempts": len(attempts),
        "self_evaluations": sum(a.feedback_ok for a in attempts),
        "self_evaluation_fallbacks": sum(not a.feedback_ok for a in attempts),
        "condensations": sum(not m.fallback for _, m in lessons),
        "condensation_fallbacks": sum(m.fallback for _, m in lessons),
        "empty_memories": sum(not m.text for _, m in lessons),
        "tokens": sum(a.tokens for a in attempts) + sum(m.cost_tokens for _, m in lessons),
    }


def describe(spent: dict[str, int]) -> str:
    """The counts in a sentence."""
    if not spent["runs"]:
        return "no private rehearsal: the control"
    return (
        f"{spent['attempts']} private rehearsals; usable: {spent['self_evaluations']} of {spent['attempts']} "
        f"self-evaluations, {spent['condensations']} of {spent['runs']} condensations; {spent['tokens']} "
        "tokens read and written"
    )
