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
SETTING = {
    "trials": 2,
    "seed": 5,
    "params": RolloutParams(prompt_tokens=65536, response_tokens=4096),
    "method": Method(),
    "renderer": RENDERER,
    "judge": RuleJudge(),
    "temperature": 0.7,
    "concurrency": 2,
}


@lru_cache
def some_tasks():
    return tuple(generate(7, "held", 3))


class Expert:
    """The expert of whichever task asks."""

    def __init__(self, broken=()):
        self.experts = {t.id: ExpertPolicy(t, RENDERER) for t in some_tasks()}
        self.broken, self.requests = broken, []

    async def generate(self, request):
        self.requests.append(request)
        if request.episode_id in self.broken:
            raise ConnectionError("server went away")
        return await self.experts[request.task_id].generate(request)


def play(policy, tasks=None, **changes):
    return asyncio.run(evaluate(policy, tasks or some_tasks(), **(SETTING | changes)))


def score_of(samples):
    planned = plan([t.id for t in some_tasks()], 2)
    return summarise(samples, planned, benchmark="desk", metrics=["success"])[0]


@pytest.mark.parametrize(("policy", "score"), [(Expert(), 1.0), (DoNothingPolicy(RENDERER), 0.0)])
def test_the_expert_scores_one_and_doing_nothing_scores_zero(policy, score):
    samples, episodes = play(policy)
    assert [s.metrics["success"] for s in samples] == [score] * 6
    r = score_of(samples)
    assert (r.score, r.n_scored, r.n_tasks, r.n_trials) == (score, 6, 3, 2)
    assert [s.episode_id for s in samples] == [e.id for e in episodes]


def test_calls_are_answered_by_the_true_world_whatever_the_method_trains_on():
    _, episodes = play(Expert(), method=Method(source="rehearse"))
    assert {o.source for e in episodes for o in e.observations} == {Source.ENVIRONMENT}
    assert all(e.real_calls for e in episodes) and not any(e.counters["rehearse"] for e in episodes)


def test_trials_have_seeds_of_their_own_that_do_not_depend_on_the_policy():
    expert = Expert()
    samples, _ = play(expert)
    again, _ = play(DoNothingPolicy(RENDERER), tasks=some_tasks()[::-1])
    seeds = {(s.task, s.trial): s.seed for s in samples}
    assert seeds == {(s.task, s.trial): s.seed for s in again} and len(set(seeds.values())) == 6
    assert trial_seed(5, "a", 0) != trial_seed(6, "a", 0)
    assert {r.sampling.temperature for r in expert.requests} == {0.7}


def test_a_policy_that_cannot_be_asked_is_no_zero_and_withholds_the_headline():
    second = some_tasks()[1].id
    samples, _ = play(Expert(broken={f"{second}/0"}))
    [lost] = [s for s in samples if s.status is SampleStatus.INFRA_FAILURE]
    assert (lost.task, lost.trial, lost.reward) == (second, 0, None) and "server went away" in lost.error
    r = score_of(samples)
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
    expert, whose = Expert(), (some_tasks()[0].id, 1)
    memory = Memory(text="look twice", n_attempts=1, tokens=3)
    play(expert, memory_for=lambda task, trial: memory if (task.id, trial) == whose else None)
    told = {r.episode_id for r in expert.requests if any("look twice" in m.content for m in r.messages)}
    assert told == {f"{whose[0]}/1"}


def test_progress_counts_every_trial():
    seen = []
    play(DoNothingPolicy(RENDERER), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 6) for k in range(1, 7)]


@pytest.mark.parametrize(
    ("world", "says"),
    [(None, "has no executable world"), ({"kind": "mars"}, "no world of kind 'mars'; known: desk, files")],
)
def test_a_world_that_is_not_there_is_named_before_anything_runs(world, says):
    with pytest.raises(DataError, match=says):
        play(DoNothingPolicy(RENDERER), tasks=[replace(some_tasks()[0], world=world)])


@pytest.mark.parametrize("stop", sorted(NOT_THE_POLICY))
def test_stops_outside_the_policy_are_infrastructure_failures(stop: StopReason):
    _, (episode, *_) = play(DoNothingPolicy(RENDERER), tasks=some_tasks()[:1], trials=1)
    sample = sample_of(some_tasks()[0], 0, replace(episode, stop=stop, reward=None, stop_detail="why"))
    assert (sample.status, sample.reward, sample.error) == (SampleStatus.INFRA_FAILURE, None, "why")
