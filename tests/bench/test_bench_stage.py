"""The bench stage with a fake harness: who is asked, what is published, what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from harness_kit import FakeBench, server

from envace.bench.harness import registry
from envace.bench.harness.spec import EvalRoles
from envace.config import RoleParams, parse
from envace.errors import ParamsError, StageFailed
from envace.params import check_others
from envace.policy.card import read_card
from envace.types import Endpoint, ScoreRecord, replace
from tasks import baselines, bench
from tasks.run import Run


class Log:
    def __init__(self):
        self.run_id, self.said, self.tagged = "run-1", {}, {}

    def metrics(self, values, step=0):
        self.said |= values

    def tags(self, values):
        self.tagged |= values

    def artifact(self, name, content):
        self.said[f"artifact/{name}"] = content


def make_run(root: Path, monkeypatch, url: str, **section) -> Run:
    monkeypatch.setenv("ENVACE_STATE", str(root / ".state"))
    monkeypatch.setitem(registry.ADAPTERS, "bfcl", f"{FakeBench.__module__}:FakeBench")
    options = {"bfcl": {"subsets": ["a", "b"], **section.pop("options", {})}}
    baselines_ = {"other": {"base_url": url, "model": "m"}}
    section = {"policies": ["other"], "benchmarks": ["bfcl"], "baselines": baselines_, **section}
    section |= {"options": options}
    run = Run("bench@other-bfcl", parse({"bench": section, "report": {"bootstrap": 100}}), root, Log())
    baselines.write_baseline.fn(run, "other", root / "models/other")
    return run


def test_a_baseline_behind_a_server_is_run_and_published(tmp_path, monkeypatch):
    with server() as (url, seen):
        run = make_run(tmp_path, monkeypatch, url)
        bench.write_bench.fn(run, bench.run_harness.fn(run, "other", "bfcl"), "other", "bfcl")
    out = tmp_path / "results/bench/other-bfcl"
    scores = json.loads((out / "scores.json").read_text())
    assert len(seen) == 6 and len((out / "samples.jsonl").read_text().splitlines()) == 6
    assert scores["scores"][0]["score"] == 1.0 and scores["scores"][0]["policy"] == "other"
    assert scores["scores"][0]["policy_hash"] == read_card(tmp_path / "models/other").hash
    assert (out / "raw/a-0/results.jsonl").is_file() and (out / "metrics.json").is_file()
    assert run.log.said["bench/bfcl.all.reward.strict"] == 1.0
    assert all(name.count("/") == 1 for name in run.log.said)
    assert run.log.said["bench/bfcl.all.n_tasks"] == 6 and run.log.said["bench/bfcl.all.n_trials"] == 1
    assert run.log.tagged["version.harness"] == scores["scores"][0]["harness"]
    said = {k: run.log.tagged[f"bench.{k}"] for k in ("user", "judge", "trials", "limit", "subsets")}
    assert said == {"user": "none", "judge": "none", "trials": 1, "limit": 0, "subsets": "a,b"}


def test_an_incomplete_run_publishes_nothing_and_goes_on_later(tmp_path, monkeypatch):
    with server() as (url, seen):
        run = make_run(tmp_path, monkeypatch, url, options={"faults": {"a/1": "once"}})
        with pytest.raises(StageFailed, match="1 of 6 samples have no score, bench.min_complete is 1"):
            bench.run_harness.fn(run, "other", "bfcl")
        assert not (tmp_path / "results").exists() and len(seen) == 5
        bench.run_harness.fn(run, "other", "bfcl")
        assert len(seen) == 8  # the three of the job that was not done


def again(run, **bench) -> Run:
    """The same stage after `bench` was edited."""
    edited = dataclasses.replace(run.params, bench=dataclasses.replace(run.params.bench, **bench))
    return Run(run.name, edited, run.root, Log())


def test_a_lower_gate_takes_what_is_there_and_asks_nobody(tmp_path, monkeypatch):
    with server() as (url, seen):
        run = make_run(tmp_path, monkeypatch, url, options={"faults": {"a/1": "missing"}})
        with pytest.raises(StageFailed, match="1 of 6"):
            bench.run_harness.fn(run, "other", "bfcl")
        assert len(seen) == 5
        left = bench.run_harness.fn(again(run, min_complete=0.8, concurrency=3), "other", "bfcl")
        assert len(seen) == 5 and [s.status for s in left.samples].count("missing") == 1
        with pytest.raises(
            StageFailed, match="1 of 6"
        ):  # at the old gate the job that lacks one is run again
            bench.run_harness.fn(again(run, min_complete=0.9), "other", "bfcl")
        assert len(seen) == 7


def test_more_trials_ask_for_those_trials_only(tmp_path, monkeypatch):
    with server() as (url, seen):
        run = make_run(tmp_path, monkeypatch, url, options={"subsets": ["a"]})
        bench.run_harness.fn(run, "other", "bfcl")
        assert len(seen) == 3
        more = bench.run_harness.fn(again(run, trials=2, concurrency=2, deadline_s=99.0), "other", "bfcl")
        assert len(seen) == 6 and sorted({s.trial for s in more.samples}) == [0, 1]
        bench.run_harness.fn(again(run, temperature=0.5), "other", "bfcl")
        assert len(seen) == 9  # what shapes the answers starts afresh


DEAD = "http://127.0.0.1:9/v1"


def request_of(run, policy="other", benchmark="bfcl"):
    roles = EvalRoles(agent=Endpoint(base_url=DEAD, model="m"))
    return bench.request_for(run, roles, read_card(run.root / "models/other"), policy, benchmark)


def test_each_policy_and_each_device_has_a_work_folder_of_its_own(tmp_path, monkeypatch):
    """Points of the start policy on the curves of two trainings have one card and one hash."""
    run = make_run(tmp_path, monkeypatch, DEAD)
    gpu = dataclasses.replace(run.params, engine=dataclasses.replace(run.params.engine, device="gpu"))
    runs, policies = (run, Run(run.name, gpu, run.root, Log())), ("other", "envace-1@0", "own-1@0")
    asked = [request_of(r, policy).out.name for r in runs for policy in policies]
    assert len(set(asked)) == 6 and asked[1].startswith("envace-1@0-bfcl-")


@pytest.mark.parametrize(("asks", "folders"), [((), 1), (("judge",), 2)])
def test_a_judge_names_the_work_folder_where_it_is_asked(tmp_path, monkeypatch, asks, folders):
    monkeypatch.setattr(FakeBench, "asks", asks)
    run, judge = make_run(tmp_path, monkeypatch, DEAD), RoleParams(base_url=DEAD, model="j")
    assert len({request_of(r).out.name for r in (run, again(run, judge=judge))}) == folders


def test_how_a_baseline_is_asked_is_part_of_its_folder(tmp_path, monkeypatch):
    """DVC sees the folder: another thinking mode or body makes the baseline's scores stale."""
    own = {"base_url": DEAD, "model": "m", "thinking": "never", "extra_body": {"top_k": 5}}
    make_run(tmp_path, monkeypatch, "", baselines={"other": own})
    asked = json.loads((tmp_path / "models/other/asked.json").read_text())
    assert (asked["thinking"], asked["extra_body"], "base_url" in asked) == ("never", {"top_k": 5}, False)


def test_a_benchmark_may_have_its_own_limit_and_trials(tmp_path, monkeypatch):
    run = make_run(tmp_path, monkeypatch, DEAD, options={"limit": 7, "trials": 2}, limit=3)
    run.params.bench.options["tau2"] = {}
    own, other = request_of(run), request_of(run, benchmark="tau2")
    assert (own.limit, own.trials, own.options) == (7, 2, {})
    assert (other.limit, other.trials, other.subsets) == (3, 1, ("airline", "retail", "telecom"))


@pytest.mark.parametrize(
    ("name", "subsets"),
    [
        ("bfcl", ("offline",)),
        ("tau2", ("airline", "retail", "telecom")),
        ("vita", ("delivery", "instore", "ota", "cross")),
        ("finmcp", ("single", "multi", "multi_turn")),
    ],
)
def test_a_benchmark_without_subsets_runs_those_its_headline_is_of(name, subsets):
    found = registry.adapter(name)
    assert found.default == subsets and set(subsets) <= set(found.subsets)


def test_a_score_in_words_says_single_trial_and_withheld():
    numbers = {"score": 0.5, "low": 0.4, "high": 0.6, "floors": {"do_nothing": 0.46}}
    counts = {"n_tasks": 50, "n_trials": 1, "n_scored": 50}
    one = ScoreRecord(benchmark="tau2", subset="airline", metric="reward", **numbers, **counts)
    start = "tau2 airline reward (strict)"
    assert bench.line(one) == f"{start} 0.500 [0.400, 0.600] over 50 tasks, single trial, do_nothing 0.460"
    none = dict.fromkeys(("score", "low", "high"))
    lost = replace(one, **none, n_trials=4, n_scored=199, n_infra_failure=1, floors={})
    assert bench.line(lost) == f"{start} withheld over 50 tasks x 4 trials, 1 without a score"


def asks(benchmark, **options):
    return {"policies": ["start"], "benchmarks": [benchmark], "options": {benchmark: options}}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"policies": ["start"]}, "bench.benchmarks is empty"),
        ({"policies": ["start"], "benchmarks": ["tau2"]}, "tau2 needs one as its user"),
        (asks("vita") | {"user": {"script": ["x"]}}, "vita needs one as its judge"),
        ({"policies": ["strat"], "benchmarks": ["bfcl"]}, "did you mean start"),
        ({"user": {"script": ["x"], "base_url": "http://h", "model": "m"}}, "both script and base_url"),
        ({"baselines": {"start": {"uri": "a/b", "revision": "0" * 40}}}, "is made by another stage"),
        ({"baselines": {"q": {"uri": "a/b", "revision": "main"}}}, "must be a 40-digit commit"),
        ({"baselines": {"q": {}}}, "needs either uri"),
        ({"options": {"tau": {}}}, "did you mean tau2"),
        ({"options": {"tau2": {"trials": 0}}}, "bench.options.tau2.trials is 0"),
        ({"options": {"tau2": {"limit": "all"}}}, "bench.options.tau2.limit is 'all'"),
        (asks("bfcl", subsets=["simple"]), "bfcl has no subset 'simple'"),
        (asks("finmcp", mode="live"), "mode live needs mcp_url"),
        ({"baselines": {"q": {"base_url": "http://h/v1"}}}, "model is empty"),
    ],
)
def test_parameters_that_cannot_be_meant_are_one_sentence(section, words):
    with pytest.raises(ParamsError, match=words):
        check_others(parse({"bench": section}))
