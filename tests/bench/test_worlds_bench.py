"""Committed executions of scripted policies in the true world, from tasks to score records."""

import asyncio
from functools import lru_cache

import pytest

from envace.bench.summary import plan, summarise
from envace.bench.worlds import NOT_THE_POLICY, evaluate, sample_of, trial_seed
from envace.chat.renderer import ByteRenderer
from envace.config import RolloutParams
from envace.config.method import Method
from envace.errors import DataError, StageFailed
from envace.judge import RuleJudge
from envace.policy.scripted import DoNothingPolicy, ScriptedPolicy
from envace.types import Memory, SampleStatus, Source, StopReason, replace
from envace.worlds.desk.tasks import generate
from envace.worlds.expert import ExpertPolicy

RENDERER = ByteRenderer()
PARAMS = RolloutParams(prompt_tokens=65536, response_tokens=4096)


@lru_cache
def some_tasks():
    return tuple(generate(7, "held", 3))


class Expert:
    """The expert of whichever task asks."""

    def __init__(self, tasks, broken=()):
        self.experts, self.broken, self.requests = (
            {t.id: ExpertPolicy(t, RENDERER) for t in tasks},
            broken,
            [],
        )

    async def generate(self, request):
        self.requests.append(request)
        if request.episode_id in self.broken:
            raise ConnectionError("server went away")
        return await self.experts[request.task_id].generate(request)


def play(policy, tasks=None, **changes):
    settings = {
        "trials": 2,
        "seed": 5,
        "params": PARAMS,
        "method": Method(),
        "renderer": RENDERER,
        "judge": RuleJudge(),
        "temperature": 0.7,
        "concurrency": 2,
        **changes,
    }
    return asyncio.run(evaluate(policy, tasks or some_tasks(), **settings))


def test_the_expert_scores_one_and_doing_nothing_scores_zero():
    for policy, score in ((Expert(some_tasks()), 1.0), (DoNothingPolicy(RENDERER), 0.0)):
        samples, episodes = play(policy)
        assert [s.metrics["success"] for s in samples] == [score] * 6
        (r,) = summarise(
            samples, plan([t.id for t in some_tasks()], 2), benchmark="desk", metrics=["success"]
        )
        assert (r.score, r.n_scored, r.n_tasks, r.n_trials) == (score, 6, 3, 2)
        assert [s.episode_id for s in samples] == [e.id for e in episodes]


def test_calls_are_answered_by_the_true_world_whatever_the_method_trains_on():
    _, episodes = play(Expert(some_tasks()), method=Method(source="rehearse"))
    assert {o.source for e in episodes for o in e.observations} == {Source.ENVIRONMENT}
    assert all(e.real_calls for e in episodes) and not any(e.counters["rehearse"] for e in episodes)


def test_trials_have_seeds_of_their_own_that_do_not_depend_on_the_policy():
    expert = Expert(some_tasks())
    samples, _ = play(expert)
    again, _ = play(DoNothingPolicy(RENDERER), tasks=some_tasks()[::-1])
    seeds = {(s.task, s.trial): s.seed for s in samples}
    assert seeds == {(s.task, s.trial): s.seed for s in again} and len(set(seeds.values())) == 6
    assert trial_seed(5, "a", 0) != trial_seed(6, "a", 0)
    assert {r.sampling.temperature for r in expert.requests} == {0.7}


def test_a_policy_that_cannot_be_asked_is_no_zero_and_withholds_the_headline():
    tasks = some_tasks()
    samples, _ = play(Expert(tasks, broken={f"{tasks[1].id}/0"}))
    lost = [s for s in samples if s.status is SampleStatus.INFRA_FAILURE]
    assert [(s.task, s.trial, s.reward) for s in lost] == [
        (tasks[1].id, 0, None)
    ] and "server went away" in lost[0].error
    (r,) = summarise(samples, plan([t.id for t in tasks], 2), benchmark="desk", metrics=["success"])
    assert r.score is None and (r.n_scored, r.n_infra_failure) == (5, 1)


def test_a_server_that_is_down_fails_the_evaluation():
    async def down(request):
        raise ConnectionError("refused")

    with pytest.raises(StageFailed, match="groups in a row failed"):
        play(ScriptedPolicy(down, RENDERER), tasks=generate(7, "held", 12), trials=1)


def test_a_policy_that_runs_into_a_budget_is_scored_as_it_stands():
    call = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "#zzz"}}\n</tool_call>'
    samples, _ = play(ScriptedPolicy(lambda request: call, RENDERER), trials=1)
    assert {s.status for s in samples} == {SampleStatus.SCORED} and {s.reward for s in samples} == {0.0}
    assert not {s.stop for s in samples} & {"done", *NOT_THE_POLICY}


def test_memory_reaches_the_run_it_was_made_for():
    tasks, expert = some_tasks(), Expert(some_tasks())

    def memory_for(task, trial):
        return (
            Memory(text="look twice", n_attempts=1, tokens=3)
            if (task.id, trial) == (tasks[0].id, 1)
            else None
        )

    play(expert, memory_for=memory_for)
    told = {r.episode_id for r in expert.requests if any("look twice" in m.content for m in r.messages)}
    assert told == {f"{tasks[0].id}/1"}


def test_progress_counts_every_trial():
    seen = []
    play(DoNothingPolicy(RENDERER), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 6) for k in range(1, 7)]


def test_a_task_without_a_world_is_refused_before_anything_runs():
    with pytest.raises(DataError, match="has no executable world"):
        play(DoNothingPolicy(RENDERER), tasks=[replace(some_tasks()[0], world=None)])


def test_a_world_of_an_unknown_kind_is_refused_before_anything_runs():
    with pytest.raises(DataError, match="no world of kind 'mars'; known: desk, files"):
        play(DoNothingPolicy(RENDERER), tasks=[replace(some_tasks()[0], world={"kind": "mars"})])


@pytest.mark.parametrize("stop", sorted(NOT_THE_POLICY))
def test_stops_outside_the_policy_are_infrastructure_failures(stop: StopReason):
    _, (episode, *_) = play(DoNothingPolicy(RENDERER))
    sample = sample_of(some_tasks()[0], 0, replace(episode, stop=stop, reward=None, stop_detail="why"))
    assert (sample.status, sample.reward, sample.error) == (SampleStatus.INFRA_FAILURE, None, "why")
