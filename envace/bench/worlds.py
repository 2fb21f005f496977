"""Committed executions: tasks of any kind of world in their true world, scored against its state.

Invariant: every trial starts from a fresh world with a seed that depends on the task, the trial and the
evaluation's seed only, so that two policies can be compared in pairs. An episode that ended for reasons
outside the policy has no score; one that ran into a budget is scored as it stands.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from envace.bench.committed import committed
from envace.chat.renderer import Renderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.errors import DataError
from envace.judge import Judge
from envace.policy.protocol import Policy
from envace.rollout.pool import Job, episode_job, run_pool
from envace.rollout.prompts import load_prompt_set
from envace.rollout.sources import make_source
from envace.types import Episode, Memory, SampleRecord, SampleStatus, Sampling, StopReason, Task, replace
from envace.worlds.registry import kind_of, world_class

NOT_THE_POLICY = {
    StopReason.POLICY_FAILED,  # the model could not be asked
    StopReason.SOURCE_FAILED,
    StopReason.JUDGE_FAILED,
    StopReason.DEADLINE,  # wall clock says more about the machine than about the policy
    StopReason.CANCELLED,
}
DEAD_TASKS = 8  # so many tasks in a row without one usable episode: something is down, the stage fails
MemoryFor = Callable[[Task, int], Memory | None]
Counting = Callable[[int, int], None]  # done, total


class Setting(TypedDict):
    """How often tasks are played, and under which conditions."""

    trials: int
    seed: int
    params: RolloutParams
    method: Method
    renderer: Renderer
    judge: Judge
    temperature: float
    concurrency: int


async def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    progress: Counting | None = None,
    memory_for: MemoryFor | None = None,
    **setting: Unpack[Setting],
) -> tuple[list[SampleRecord], list[Episode]]:
    """Play every task `trials` times in its true world.

    progress(done, total) is called as episodes end. memory_for(task, trial) gives what the committed run is
    told about private rehearsals. Raises DataError for a task without a world or with a broken rule,
    StageFailed (PoolAborted) when only dead tasks come back.
    """
    if lost := next((t.id for t in tasks if t.world is None), None):
        raise DataError(f"task {lost} has no executable world, so it cannot be scored in one")
    for kind in {kind_of(task) for task in tasks}:
        world_class(kind)  # an unknown one is told before anything runs
    tick = ticking(len(tasks) * setting["trials"], progress)
    setting["method"] = replace(setting["method"], source="environment")
    episodes = await play(policy, tasks, memory_for=memory_for, on_episode=tick, **setting)
    owed = [(task, trial) for task in tasks for trial in range(setting["trials"])]
    return [sample_of(task, trial, e) for (task, trial), e in zip(owed, episodes, strict=True)], episodes


async def play(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    prefix: str = "",
    memory_for: MemoryFor | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    **setting: Unpack[Setting],
) -> list[Episode]:
    """Every task `trials` times, answered as `method` says; ids are `<prefix><task>/<trial>`. Task by task,
    so that dead groups show early. Raises PoolAborted when only dead tasks come back.
    """
    method, params, renderer = setting["method"], setting["params"], setting["renderer"]
    prompts, sampling = load_prompt_set(params.prompt_set), sampling_of(params, setting["temperature"])

    def job(task: Task, trial: int) -> Job:
        return episode_job(
            task,
            episode_id=f"{prefix}{task.id}/{trial}",
            group_id=task.id,
            seed=trial_seed(setting["seed"], task.id, trial),
            attempt=trial,
            make_source=lambda: make_source(task, method, policy, renderer, params),
            sampling=sampling,
            memory=memory_for(task, trial) if memory_for else None,
            policy=policy,
            renderer=renderer,
            judge=setting["judge"],
            method=method,
            params=params,
            prompt_set=prompts,
        )

    jobs = [job(task, trial) for task in tasks for trial in range(setting["trials"])]
    at_once = setting["concurrency"]
    return await run_pool(jobs, concurrency=at_once, abort_after=DEAD_TASKS, on_episode=on_episode)


def sampling_of(params: RolloutParams, temperature: float) -> Sampling:
    """Without a seed: each generation gets one of its own from its episode's."""
    return Sampling(temperature=temperature, top_p=params.top_p, max_tokens=params.response_tokens)


def ticking(total: int, progress: Counting | None) -> Callable[[Episode], None] | None:
    """Tells `progress` how many episodes have ended."""
    done = itertools.count(1)
    return (lambda _: progress(next(done), total)) if progress else None


def sample_of(task: Task, trial: int, episode: Episode) -> SampleRecord:
    """What one committed episode is worth. Raises DataError when a rule of the task is broken."""
    known = SampleRecord(
        task=task.id,
        trial=trial,
        seed=episode.seed,
        status=SampleStatus.SCORED,
        stop=episode.stop.value,
        episode_id=episode.id,
    )
    if episode.stop in NOT_THE_POLICY:
        error = episode.stop_detail or episode.unscored_reason or episode.stop.value
        return replace(known, status=SampleStatus.INFRA_FAILURE, error=error)
    count = episode.counters
    tokens = float(count.get("tokens_act", 0) + count.get("tokens_rehearse", 0))
    metrics = committed(task, episode) | {"calls": float(count.get("calls", 0)), "tokens": tokens}
    return replace(known, reward=metrics["success"], metrics=metrics)


def trial_seed(seed: int, task_id: str, trial: int) -> int:
    """A 31-bit seed of its own for each trial, the same on every machine and for every policy."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task_id}/{trial}".encode()).digest()[:4]) >> 1
