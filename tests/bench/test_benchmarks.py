"""Benchmarks by name: each plays its own staged split with the same code."""

from types import SimpleNamespace

import pytest

from envace.config import parse
from envace.data.stage import stage
from envace.errors import DataError, UserError
from envace.types import PolicyRef
from envace.worlds.expert import ExpertPolicy
from envace.worlds.files.tasks import generate
from tasks import evaluation
from tasks.serving import Served

DESK, ROOM = {"train_tasks": 4, "held_tasks": 2, "files_tasks": 4}, {"prompt_tokens": 60000}
PARAMS = {"desk": DESK, "rollout": ROOM | {"response_tokens": 4000}, "eval": {"trials": 2}}
PARAMS = parse(PARAMS | {"report": {"bootstrap": 100}})


@pytest.fixture
def run(tmp_path, monkeypatch):
    stage(PARAMS, tmp_path / "data/staged")
    policy = ExpertPolicy(generate(7, 4))
    ref = PolicyRef(kind="tiny", uri="models/start", hash="h")
    served = Served(policy=policy, renderer=policy.renderer, ref=ref)
    monkeypatch.setattr(evaluation, "open_policy", lambda run, *_: served)
    logged = {}
    told = {"say": lambda text: None, "metrics": lambda values, step=0: logged.update(values)}
    told["artifact"] = lambda name, content: None
    return SimpleNamespace(params=PARAMS, path=tmp_path.joinpath, log=None, logged=logged, **told)


def test_the_files_benchmark_plays_the_files_split_with_its_floors(run):
    outcome = evaluation.play_benchmark.fn(run, "start", "files")
    head = outcome.scores[0]
    assert (head.benchmark, head.metric, head.score) == ("files", "success", 1.0)
    assert (head.n_tasks, head.n_trials) == (4, 2)
    assert {s.task for s in outcome.samples} == {f"files-held-{k}" for k in range(4)}
    assert head.floors == {"do_nothing": 0.0, "random": 0.0} and head.data_hash


def test_a_benchmark_whose_split_was_not_staged_names_the_parameter(run):
    with pytest.raises(DataError, match="unseen.parquet does not exist: desk.unseen_tasks is 0"):
        evaluation.play_benchmark.fn(run, "start", "desk-unseen")


def test_a_benchmark_without_an_adapter_names_those_that_have_one(run):
    with pytest.raises(UserError, match="tau2 has no adapter here yet; available: desk, desk-validation"):
        evaluation.play_benchmark.fn(run, "start", "tau2")


def test_what_the_judge_did_in_an_evaluation_is_counted_beside_its_scores(run, tmp_path):
    outcome = evaluation.play_benchmark.fn(run, "start", "files")
    evaluation.write_outcome.fn(run, outcome, tmp_path / "out", ("evaluate", "start", "files"))
    verdicts = [v for e in outcome.episodes for v in e.verdicts]
    assert run.logged["judge/verdicts"] == len(verdicts) > 0 == run.logged["judge/unscored"]
    assert run.logged["files/success"] == 1.0 and "judge/requests" not in run.logged


def test_the_committed_episodes_of_tts_are_kept_beside_its_private_tries(run, tmp_path):
    outcome = evaluation.play_benchmark.fn(run, "start", "files")
    for names, tries in ((("evaluate", "start", "files"), False), (("tts", "plain-0"), True)):
        evaluation.write_outcome.fn(run, outcome, tmp_path / names[0], names)
        assert len((tmp_path / names[0] / "episodes.jsonl").read_text().splitlines()) == 4 * 2
        assert (tmp_path / names[0] / "attempts.jsonl").exists() == tries
