"""Many episodes at once: bounded concurrency, a deadline, and books that balance.

Flows in: jobs, each with the id its episode was given at dispatch. Flows out: one episode a job, in job
order.
Invariant: ids dispatched = ids finished + truncated + failed + cancelled, as sets. A job that never ran, or
was cut off, comes back as a CANCELLED episode. A pool of which only dead groups come back stops by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
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

FINISHED = {StopReason.DONE, StopReason.REQUIRED_ITEM}
OUTCOMES = ("finished", "truncated", "failed", "cancelled")


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
    deadline_s: float | None = None,
    drain_s: float = 5.0,
    abort_after: int = 0,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Run all jobs, at most `concurrency` at a time.

    deadline_s: wall clock of the whole pool; what is open then is cancelled.
    drain_s: how long cancelled episodes may take to unwind before they are left behind.
    abort_after: PoolAborted after this many consecutive groups in which every episode failed; 0 never.
    on_episode: called for each episode as it ends, cancelled ones included.
    Raises what a job raises (a bug), after cancelling the others; CancelledError when cancelled from outside,
    after every open job was reported as CANCELLED.
    """
    pool = _Pool(list(jobs), asyncio.Semaphore(concurrency), abort_after, on_episode)
    workers = {asyncio.create_task(pool.run(job), name=f"episode {job.id}") for job in pool.jobs}
    try:
        await _until_done(workers, deadline_s, pool.stop)
    finally:
        await _drain(workers, drain_s)
        for job in pool.jobs:
            pool.cancel(job)
    episodes = [pool.ended[job.id] for job in pool.jobs]
    if pool.aborted:
        raise PoolAborted(pool.aborted, episodes)
    return episodes


def outcome(stop: StopReason) -> str:
    """finished | truncated | failed | cancelled."""
    if stop in FINISHED:
        return "finished"
    if stop is StopReason.CANCELLED:
        return "cancelled"
    return "failed" if stop in FAILED else "truncated"


def account(episodes: Iterable[Episode]) -> dict[str, int]:
    """Counts for metrics: outcomes, `stop/<reason>`, `failure/<reason>`, unscored, and the episodes' own
    sums."""
    total: Counter[str] = Counter({name: 0 for name in ("episodes", *OUTCOMES, "unscored", *COUNTED)})
    for episode in episodes:
        total["episodes"] += 1
        total[outcome(episode.stop)] += 1
        total["unscored"] += episode.unscored
        total[f"stop/{episode.stop.value}"] += 1
        total.update(episode.counters)
    return dict(total)


@dataclass(slots=True)
class _Pool:
    """The books of one `run_pool`."""

    jobs: list[Job]
    slots: asyncio.Semaphore
    abort_after: int
    on_episode: Callable[[Episode], None] | None
    ended: dict[str, Episode] = field(default_factory=dict)
    open: Counter[str] = field(default_factory=Counter)
    """Episodes that have not ended, by group."""
    alive: set[str] = field(default_factory=set)
    """Groups with at least one episode that did not fail."""
    dead_in_a_row: int = 0
    aborted: str = ""
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if len({job.id for job in self.jobs}) < len(self.jobs):
            raise ValueError("two jobs have the same episode id")
        self.open.update(job.group_id for job in self.jobs)

    async def run(self, job: Job) -> None:
        async with self.slots:
            if self.aborted:
                return  # closing the books reports it as cancelled
            try:
                episode = await job.start()
            except asyncio.CancelledError:
                self.cancel(job)
                raise
            if episode.id != job.id:
                raise ValueError(f"job {job.id} came back as episode {episode.id}")
            if job.id not in self.ended:  # a drained pool has already closed its books
                self.end(episode)
                self.watch_groups(episode)

    def end(self, episode: Episode) -> None:
        self.ended[episode.id] = episode
        if self.on_episode:
            self.on_episode(episode)

    def cancel(self, job: Job) -> None:
        """Report it as cancelled, unless it has ended."""
        if job.id not in self.ended:
            self.end(job.without_episode(StopReason.CANCELLED, "the pool stopped"))

    def watch_groups(self, episode: Episode) -> None:
        group = episode.group_id
        self.open[group] -= 1
        if outcome(episode.stop) != "failed":
            self.alive.add(group)
        if self.open[group]:
            return
        self.dead_in_a_row = 0 if group in self.alive else self.dead_in_a_row + 1
        if self.abort_after and self.dead_in_a_row >= self.abort_after and not self.aborted:
            why = f"{episode.stop.value}: {episode.stop_detail}".rstrip(": ")
            self.aborted = f"{self.dead_in_a_row} groups in a row failed, the last with {why}"
            self.stop.set()


async def _until_done(
    workers: set[asyncio.Task[None]], deadline_s: float | None, stop: asyncio.Event
) -> None:
    """Wait for all workers, the deadline, the abort signal, or the first bug (which is raised)."""

    async def stopped() -> None:
        await stop.wait()

    signal = asyncio.create_task(stopped())
    ends = None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s
    pending = set(workers)
    try:
        while pending and not stop.is_set():
            left = None if ends is None else max(0.0, ends - asyncio.get_running_loop().time())
            done, pending = await asyncio.wait(
                pending | {signal}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            pending.discard(signal)
            for worker in done - {signal}:
                if not worker.cancelled():
                    worker.result()
            if not done:
                return
    finally:
        signal.cancel()


async def _drain(workers: set[asyncio.Task[None]], drain_s: float) -> None:
    """Cancel what is open and wait a bounded time; a worker that ignores cancellation is left behind."""
    pending = {w for w in workers if not w.done()}
    for worker in pending:
        worker.cancel()
    if pending:
        done, _ = await asyncio.wait(pending, timeout=drain_s)
        for worker in done:
            if not worker.cancelled():
                worker.exception()  # retrieved: the reason to stop is already known
