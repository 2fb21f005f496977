"""Many episodes at once: bounded concurrency, and books that balance.

Flows in: jobs, each with the id its episode was given at dispatch. Flows out: one episode a job, in job
order.
Invariant: ids dispatched = ids finished + truncated + failed + cancelled, as sets. A job that never ran, or
was cut off, comes back as a CANCELLED episode. A pool of which only dead groups come back stops by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from envace.chat.renderer import Renderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.errors import StageFailed
from envace.judge.base import Judge
from envace.policy.protocol import Policy
from envace.rollout.episode import run_episode
from envace.rollout.interfaces import Halt, ObservationSource, halting
from envace.rollout.prompts import PromptSet
from envace.rollout.state import COUNTED, FAILED, Watch
from envace.types import Episode, Memory, Sampling, StopReason, Task

DRAIN_S = 5.0  # how long cancelled episodes may take to unwind before they are left behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One episode to be: its identity, known before it starts, and how to start it."""

    id: str
    task_id: str
    group_id: str
    seed: int
    start: Callable[[], Awaitable[Episode]]
    attempt: int = 0
    prompt_set: str = ""

    def without_episode(self, stop: StopReason, detail: str) -> Episode:
        """What comes back of a job that has nothing to show."""
        return Episode(
            id=self.id,
            task_id=self.task_id,
            group_id=self.group_id,
            attempt=self.attempt,
            seed=self.seed,
            prompt_set=self.prompt_set,
            generations=(),
            messages=(),
            reward=None,
            unscored_reason=f"{stop.value}: {detail}",
            stop=stop,
            stop_detail=detail,
            counters=dict.fromkeys(COUNTED, 0),
        )


class PoolAborted(StageFailed):
    """Every group comes back dead. `episodes` holds one episode a job, the cancelled ones included."""

    def __init__(self, message: str, episodes: Sequence[Episode]):
        super().__init__(message)
        self.episodes = list(episodes)


class EpisodeSetting(TypedDict, total=False):
    """What `run_episode` is told beside the identity of an episode; the last three may be left out."""

    policy: Policy
    renderer: Renderer
    judge: Judge
    method: Method
    params: RolloutParams
    prompt_set: PromptSet
    sampling: Sampling | None
    memory: Memory | None
    watch: Watch | None


def episode_job(
    task: Task,
    *,
    episode_id: str,
    group_id: str,
    seed: int,
    make_source: Callable[[], ObservationSource],
    attempt: int = 0,
    **setting: Unpack[EpisodeSetting],
) -> Job:
    """A job that plays `task` with `run_episode`; its source (and world) is made when it starts."""

    async def start() -> Episode:
        try:
            with halting(StopReason.SOURCE_FAILED):
                source = make_source()
        except Halt as halt:
            return job.without_episode(halt.stop, halt.detail)
        return await run_episode(
            task,
            source=source,
            episode_id=episode_id,
            group_id=group_id,
            seed=seed,
            attempt=attempt,
            **setting,
        )

    job = Job(
        id=episode_id,
        task_id=task.id,
        group_id=group_id,
        seed=seed,
        attempt=attempt,
        prompt_set=setting["prompt_set"].hash,
        start=start,
    )
    return job


async def run_pool(
    jobs: Iterable[Job],
    *,
    concurrency: int,
    abort_after: int = 0,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Run all jobs, at most `concurrency` at a time.

    abort_after: PoolAborted after this many consecutive groups in which every episode failed; 0 never.
    on_episode: called for each episode as it ends, cancelled ones included.
    Raises what a job raises (a bug), after cancelling the others; CancelledError when cancelled from outside,
    after every open job was reported as CANCELLED.
    """
    jobs, slots = list(jobs), asyncio.Semaphore(concurrency)
    ended: dict[str, Episode] = {}
    open_, alive = Counter(job.group_id for job in jobs), set[str]()  # episodes by group; groups with a life
    dead_in_a_row, aborted = 0, ""
    if len({job.id for job in jobs}) < len(jobs):
        raise ValueError("two jobs have the same episode id")

    def end(episode: Episode) -> None:
        if episode.id not in ended:
            ended[episode.id] = episode
            if on_episode:
                on_episode(episode)

    async def work(job: Job) -> None:
        nonlocal dead_in_a_row, aborted
        async with slots:
            if aborted:
                return  # closing the books reports it as cancelled
            episode, group = await job.start(), job.group_id
            if episode.id != job.id:
                raise ValueError(f"job {job.id} came back as episode {episode.id}")
            if job.id in ended:  # a drained pool has already closed its books
                return
            end(episode)
            open_[group] -= 1
            if outcome(episode.stop) != "failed":
                alive.add(group)
            if not open_[group]:
                dead_in_a_row = 0 if group in alive else dead_in_a_row + 1
            if abort_after and dead_in_a_row >= abort_after:
                why = f"{episode.stop.value}: {episode.stop_detail}".rstrip(": ")
                aborted = aborted or f"{dead_in_a_row} groups in a row failed, the last with {why}"

    pending = {asyncio.create_task(work(job), name=f"episode {job.id}") for job in jobs}
    try:
        while pending and not aborted:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for worker in done:
                if not worker.cancelled():
                    worker.result()
    finally:
        for worker in pending:
            worker.cancel()
        if pending:  # one that ignores cancellation is left behind
            done, _ = await asyncio.wait(pending, timeout=DRAIN_S)
            for worker in done:
                if not worker.cancelled():
                    worker.exception()  # retrieved: the reason to stop is already known
        for job in jobs:
            end(job.without_episode(StopReason.CANCELLED, "the pool stopped"))
    episodes = [ended[job.id] for job in jobs]
    if aborted:
        raise PoolAborted(aborted, episodes)
    return episodes


def outcome(stop: StopReason) -> str:
    """finished | truncated | failed | cancelled."""
    if stop in (StopReason.DONE, StopReason.REQUIRED_ITEM):
        return "finished"
    if stop is StopReason.CANCELLED:
        return "cancelled"
    return "failed" if stop in FAILED else "truncated"
