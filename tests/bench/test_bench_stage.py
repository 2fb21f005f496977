"""The bench stage with a fake harness: who is asked, what is published, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness_kit import FakeBench, server

from envace.bench.harness import registry
from envace.errors import ParamsError, StageFailed
from envace.params import RoleParams, parse
from envace.policy.card import read_card
from envace.types import Sampling
from flows._entry import Run
from tasks import bench, training


class Log:
    def __init__(self):
        self.run_id, self.said = "run-1", {}

    def metrics(self, values, step=0):
        self.said |= values

    def tags(self, values):
        pass


def make_run(root: Path, monkeypatch, url: str, **section) -> Run:
    monkeypatch.setenv("ENVACE_STATE", str(root / ".state"))
    monkeypatch.setitem(registry.ADAPTERS, "bfcl", f"{FakeBench.__module__}:FakeBench")
    options = section.pop("options", {})
    section = {
        "policies": ["other"], "benchmarks": ["bfcl"], "baselines": {"other": {"base_url": url, "model": "m"}},
        "options": {"bfcl": {"subsets": ["a", "b"], **options}}, **section,
    }  # fmt: skip
    run = Run("bench@other-bfcl", parse({"bench": section, "report": {"bootstrap": 100}}), root, Log())
    training.write_baseline.fn(run, "other", root / "models/other")
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


def test_an_incomplete_run_publishes_nothing_and_goes_on_later(tmp_path, monkeypatch):
    with server() as (url, seen):
        run = make_run(tmp_path, monkeypatch, url, options={"faults": {"a/1": "once"}})
        with pytest.raises(StageFailed, match="1 of 6 samples have no score, bench.min_complete is 1"):
            bench.run_harness.fn(run, "other", "bfcl")
        assert not (tmp_path / "results").exists() and len(seen) == 5
        bench.run_harness.fn(run, "other", "bfcl")
        assert len(seen) == 8  # the three of the job that was not done


def test_fixed_lines_are_served_for_as_long_as_they_are_needed():
    with bench.part(RoleParams(script=("hello",))) as endpoint:
        assert endpoint.base_url.startswith("http://127.0.0.1:") and endpoint.model == "scripted"
    with bench.part(RoleParams(base_url="http://h/v1", model="u", temperature=0.5, max_tokens=9)) as endpoint:
        assert endpoint.sampling == Sampling(temperature=0.5, max_tokens=9)
    with bench.part(RoleParams()) as endpoint:
        assert endpoint is None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"policies": ["start"]}, "bench.benchmarks is empty"),
        ({"policies": ["start"], "benchmarks": ["tau2"]}, "tau2 needs one as its user"),
        ({"policies": ["start"], "benchmarks": ["vita"], "user": {"script": ["x"]}}, "vita needs one as its judge"),
        ({"policies": ["strat"], "benchmarks": ["bfcl"]}, "did you mean start"),
        ({"user": {"script": ["x"], "base_url": "http://h", "model": "m"}}, "both script and base_url"),
        ({"baselines": {"start": {"uri": "a/b", "revision": "0" * 40}}}, "is made by another stage"),
        ({"baselines": {"q": {"uri": "a/b", "revision": "main"}}}, "must be a 40-digit commit"),
        ({"baselines": {"q": {}}}, "needs either uri"),
        ({"baselines": {"q": {"base_url": "http://h/v1"}}}, "model is empty"),
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_meant_are_one_sentence(section, words):
    with pytest.raises(ParamsError, match=words):
        parse({"bench": section})
