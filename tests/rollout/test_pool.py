"""Many episodes: bounded, in order, and every dispatched id accounted for."""

import asyncio

import pytest
from rollout_kit import COMPACT, PARAMS, RENDERER, TASK, TableJudge, World, call, two_roles

from envace.config.method import Method
from envace.policy.scripted import ScriptedPolicy
from envace.rollout import pool
from envace.rollout.pool import Job, PoolAborted, episode_job, outcome, run_pool
from envace.rollout.sources import EnvironmentSource
from envace.types import StopReason, replace

GOOD = two_roles([call("get"), "ok", "bye"])


def broken(request):
    raise RuntimeError("sandbox is dead")


async def forever(request):
    await asyncio.sleep(60)


def job(k, policy=GOOD, group=None, params=PARAMS, make_source=lambda: EnvironmentSource(World())):
    return episode_job(
        TASK,
        episode_id=f"e-{k}",
        group_id=group or f"g-{k}",
        seed=k,
        make_source=make_source,
        method=Method(),
        params=params,
        judge=TableJudge(),
        policy=policy,
        renderer=RENDERER,
        prompt_set=COMPACT,
    )


def ids(items):
    return [i.id for i in items]


def test_episodes_come_back_in_job_order_and_the_books_balance():
    jobs = [
        job(0),
        job(1, ScriptedPolicy(broken)),
        job(2, params=replace(PARAMS, max_steps=1)),
        job(3, two_roles(["<tool_call>oops</tool_call>", "ok", "bye"])),
        job(4, make_source=lambda: 1 / 0),
    ]
    episodes = asyncio.run(run_pool(jobs, concurrency=3))
    assert ids(episodes) == ids(jobs)
    assert [outcome(e.stop) for e in episodes] == ["finished", "failed", "truncated", "finished", "failed"]
    assert [e.unscored for e in episodes] == [False, True, False, False, True]
    assert (episodes[2].stop, episodes[4].stop) == (StopReason.STEP_BUDGET, StopReason.SOURCE_FAILED)
    assert (episodes[3].counters["failure/bad_json"], episodes[3].counters["errors"]) == (1, 1)
    assert sum(e.counters["act"] for e in episodes) == 7


def test_concurrency_is_bounded():
    running, most = 0, 0

    async def speak(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return "ok"

    asyncio.run(run_pool([job(k, ScriptedPolicy(speak)) for k in range(12)], concurrency=4))
    assert most == 4


def test_a_worker_that_ignores_cancellation_holds_nobody_up(monkeypatch):
    """Public bug 26: the drain after the last episode never ended."""

    async def stubborn(request):
        for _ in range(7):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                pass
        return "late"

    monkeypatch.setattr(pool, "DRAIN_S", 0.1)
    seen = []

    async def timed():
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await run_pool([job(0, ScriptedPolicy(stubborn))], concurrency=1, on_episode=seen.append)
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(timed()) < 1.0 and [e.stop for e in seen] == [StopReason.CANCELLED]


def test_cancelling_the_pool_reports_every_open_job_first():
    seen = []

    async def outer():
        jobs = [job(k, ScriptedPolicy(forever)) for k in range(5)]
        running = asyncio.create_task(run_pool(jobs, concurrency=2, on_episode=seen.append))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(outer())
    assert {e.id for e in seen} == {f"e-{k}" for k in range(5)} and len(seen) == 5
    assert {e.stop for e in seen} == {StopReason.CANCELLED}


def test_dead_groups_in_a_row_stop_the_pool():
    """Public bug 27: every rollout errored and the run looked alive."""
    jobs = [job(k, ScriptedPolicy(broken), group=f"g-{k // 2}") for k in range(20)]
    with pytest.raises(PoolAborted, match="3 groups in a row failed.*sandbox is dead") as caught:
        asyncio.run(run_pool(jobs, concurrency=2, abort_after=3))
    assert ids(caught.value.episodes) == ids(jobs)
    assert StopReason.CANCELLED in [e.stop for e in caught.value.episodes]


def test_one_living_episode_keeps_its_group_alive():
    jobs = [job(k, GOOD if k % 2 else ScriptedPolicy(broken), group=f"g-{k // 2}") for k in range(12)]
    assert len(asyncio.run(run_pool(jobs, concurrency=2, abort_after=2))) == 12


def test_a_bug_in_a_job_is_raised_and_the_others_are_cancelled():
    seen = []

    async def bug():
        raise ZeroDivisionError("bug")

    jobs = [Job(id="b", task_id="t", group_id="g", seed=0, start=bug), job(1, ScriptedPolicy(forever))]
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_pool(jobs, concurrency=2, on_episode=seen.append))
    assert {e.id for e in seen} == {"b", "e-1"}


def test_an_id_is_given_once():
    with pytest.raises(ValueError, match="same episode id"):
        asyncio.run(run_pool([job(0), job(0)], concurrency=1))
