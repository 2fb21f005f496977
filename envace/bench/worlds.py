"""Committed executions: tasks of any kind of world in their true world, scored against its state.

Flows in: a policy and tasks with an executable world. Flows out: one `SampleRecord` a (task, trial), in plan
order, and the episodes behind them.
Invariant: every trial starts from a fresh world with a seed that depends on the task, the trial and the
evaluation's seed only, so two policies meet the same conditions and can be compared in pairs. An episode that
ended for reasons outside the policy has no score; one that ran into a budget is scored as it stands.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

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
from envace.types import Episode, Memory, SampleRecord, SampleStatus, Sampling, StopReason, Task
from envace.worlds.registry import kind_of, world_class

NOT_THE_POLICY = {
    StopReason.POLICY_FAILED,  # the model could not be asked
    StopReason.SOURCE_FAILED,
    StopReason.JUDGE_FAILED,
    StopReason.DEADLINE,  # wall clock says more about the machine than about the policy
    StopReason.CANCELLED,
}
DEAD_TASKS = 8  # so many tasks in a row without one usable episode: something is down, the stage fails


async def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    trials: int,
    seed: int,
    params: RolloutParams,
    method: Method,
    renderer: Renderer,
    judge: Judge,
    temperature: float,
    concurrency: int,
    progress: Callable[[int, int], None] | None = None,
    memory_for: Callable[[Task, int], Memory | None] | None = None,
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
    method = dataclasses.replace(method, source="environment")
    shared = {"policy": policy, "renderer": renderer, "judge": judge, "method": method, "params": params}
    shared["prompt_set"] = load_prompt_set(params.prompt_set)

    def job(task: Task, trial: int) -> Job:
        own_seed = trial_seed(seed, task.id, trial)
        return episode_job(
            task,
            episode_id=f"{task.id}/{trial}",
            group_id=task.id,
            seed=own_seed,
            attempt=trial,
            make_source=lambda: make_source(task, method, policy, renderer, params),
            sampling=_sampling(params, temperature, own_seed),
            memory=memory_for(task, trial) if memory_for else None,
            **shared,
        )

    owed = [
        (task, trial) for task in tasks for trial in range(trials)
    ]  # task by task: dead groups show early
    tick = _ticker(len(owed), progress)
    jobs = [job(task, trial) for task, trial in owed]
    episodes = await run_pool(jobs, concurrency=concurrency, abort_after=DEAD_TASKS, on_episode=tick)
    samples = [sample_of(task, trial, episode) for (task, trial), episode in zip(owed, episodes, strict=True)]
    return samples, episodes


def sample_of(task: Task, trial: int, episode: Episode) -> SampleRecord:
    """What one committed episode is worth. Raises DataError when a rule of the task is broken."""
    known = {
        "task": task.id,
        "trial": trial,
        "seed": episode.seed,
        "stop": episode.stop.value,
        "episode_id": episode.id,
    }
    if episode.stop in NOT_THE_POLICY:
        error = episode.stop_detail or episode.unscored_reason or episode.stop.value
        return SampleRecord(status=SampleStatus.INFRA_FAILURE, error=error, **known)
    count = episode.counters
    cost = {
        "calls": float(count.get("calls", 0)),
        "tokens": float(count.get("tokens_act", 0) + count.get("tokens_rehearse", 0)),
    }
    metrics = {**committed(task, episode), **cost}
    return SampleRecord(status=SampleStatus.SCORED, reward=metrics["success"], metrics=metrics, **known)


def trial_seed(seed: int, task_id: str, trial: int) -> int:
    """A 31-bit seed of its own for each trial, the same on every machine and for every policy."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task_id}/{trial}".encode()).digest()[:4]) >> 1


def _sampling(params: RolloutParams, temperature: float, seed: int) -> Sampling:
    return Sampling(temperature=temperature, top_p=params.top_p, max_tokens=params.response_tokens, seed=seed)


def _ticker(total: int, progress: Callable[[int, int], None] | None) -> Callable[[Episode], None]:
    done = 0

    def tick(episode: Episode) -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    return tick
