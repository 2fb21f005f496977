"""VitaBench itself, from a local git directory, against three loopback servers.

Its repository is in no package index, so this runs where ENVACE_VITA_SOURCE names a git directory that holds
the pinned revision; elsewhere the recorded outputs under fixtures/vita stand for it.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from kit_server import Server
from kit_vita import Agent, Judge, User, nothing

from envace.bench.harness.build import build
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.bench.vita.adapter import Vita
from envace.bench.vita.tasks import FOLDER
from envace.errors import EnvironmentUnready
from envace.types import Endpoint, SampleStatus, Sampling

SOURCE = os.environ.get("ENVACE_VITA_SOURCE", "")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not SOURCE, reason="ENVACE_VITA_SOURCE names no git directory of VitaBench"),
]
ROOT = Path(__file__).resolve().parents[2] / ".harness"
KEYS = {
    "VITA_TEST_AGENT": "canary-agent-4d1b",
    "VITA_TEST_USER": "canary-user-77c0",
    "VITA_TEST_JUDGE": "canary-judge-02",
}
FIRST, SECOND = "60711001", "C0715001"  # two of the three that seed 3 chooses
S = SampleStatus


@pytest.fixture(scope="module")
def env() -> HarnessEnv:
    return build(Vita().spec({"uri": SOURCE}), ROOT)


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def evaluated(
    env, out: Path, *, agent=None, faults=None, once=False, prose=False, language="chinese", **changes
):
    """Scores by (subset, metric, source), samples, runs and the three servers, checked for keys and
    addresses."""
    tasks = env.source / FOLDER / "delivery" / ("tasks_en.json" if language == "english" else "tasks.json")
    agent = agent or Agent(tasks, faults, once)
    with Server(agent, "same") as a, Server(User(tasks), "same") as u, Server(Judge(prose), "judge") as j:
        servers = {"AGENT": a, "USER": u, "JUDGE": j}
        roles = {
            role.lower(): Endpoint(
                base_url=s.url, model=s.model, key_env=f"VITA_TEST_{role}", sampling=Sampling(temperature=0.0)
            )
            for role, s in servers.items()
        }
        fields = {"trials": 1, "limit": 3, "concurrency": 3, "options": {"uri": SOURCE, "language": language}}
        request = EvalRequest(
            roles=EvalRoles(**roles), subsets=("delivery",), seed=3, out=out, **fields | changes
        )
        scores, samples, runs = evaluate(Vita(), request, ROOT, say=lambda _: None, bootstrap=50)
    _no_leak(servers, out)
    return {(s.subset, s.metric, s.source): s for s in scores}, {s.task: s for s in samples}, runs, servers


def _no_leak(servers: dict[str, Server], out: Path) -> None:
    for role, server in servers.items():
        for headers, body in server.seen:
            assert headers["Authorization"] == f"Bearer {KEYS['VITA_TEST_' + role]}"
            assert b"canary" not in body and b"127.0.0.1" not in body
            assert not {"base_url", "headers", "name"} & set(json.loads(body))
    held = [f for f in out.rglob("*") if f.is_file() and b"canary" in f.read_bytes()]
    assert not held


def test_replayed_orders_score_one_with_three_separate_roles(env, tmp_path):
    scores, samples, runs, servers = evaluated(env, tmp_path / "out")
    assert {s.status for s in samples.values()} == {S.SCORED} and len(samples) == 3
    for source in ("strict", "upstream"):
        assert scores["delivery", "reward", source].score == 1.0
    assert scores["delivery", "rubrics", "strict"].score == 1.0
    macro = scores["macro", "reward", "derived"]
    assert macro.score is None and macro.skipped == tuple(
        f"{d}: not asked for" for d in ("instore", "ota", "cross")
    )
    assert all(s.seen for s in servers.values())
    print("isolated:", [r.isolated for r in runs])


def test_english_tasks_score_one_too(env, tmp_path):
    scores, *_ = evaluated(env, tmp_path / "out", language="english", trials=2)
    assert (
        scores["delivery", "reward", "strict"].score
        == scores["delivery", "pass_hat_2", "strict"].score
        == 1.0
    )
    assert scores["delivery", "reward", "strict"].versions["language"] == "english"


@pytest.mark.parametrize("fault", ["malformed", "overflow"])
def test_what_upstream_drops_for_the_agents_fault_counts_zero(env, tmp_path, fault):
    scores, samples, *_ = evaluated(env, tmp_path / "out", faults={FIRST: fault})
    assert samples[f"delivery/{FIRST}"].status is S.AGENT_FAILURE
    assert scores["delivery", "reward", "upstream"].score == 1.0
    assert scores["delivery", "reward", "strict"].score == pytest.approx(2 / 3)


def test_an_empty_message_is_zero_in_both(env, tmp_path):
    scores, samples, *_ = evaluated(env, tmp_path / "out", faults={FIRST: "empty"})
    assert samples[f"delivery/{FIRST}"].error == "agent: empty_message"
    assert scores["delivery", "reward", "upstream"].score == pytest.approx(2 / 3)
    assert scores["delivery", "reward", "strict"].score == pytest.approx(2 / 3)


def test_a_call_left_in_the_text_is_the_agents_failure(env, tmp_path):
    scores, samples, *_ = evaluated(env, tmp_path / "out", faults={FIRST: "raw"}, once=True)
    assert samples[f"delivery/{FIRST}"].error == "agent: malformed_call (call markup in the text)"
    assert scores["delivery", "reward", "strict"].score == pytest.approx(2 / 3)


@pytest.mark.parametrize("down", ["agent", "user", "judge"])
def test_a_server_that_is_down_is_named_before_anything_starts(env, tmp_path, down):
    with Server(nothing, "m") as up, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        ends = {
            r: Endpoint(base_url=dead if r == down else up.url, model="m") for r in ("agent", "user", "judge")
        }
        request = EvalRequest(
            roles=EvalRoles(**ends),
            subsets=("delivery",),
            trials=1,
            seed=3,
            out=tmp_path / "out",
            limit=1,
            options={"uri": SOURCE},
        )
        with pytest.raises(EnvironmentUnready, match="no model server answers"):
            evaluate(Vita(), request, ROOT, say=lambda _: None, probe_s=0.5)
    assert not up.seen and not list(tmp_path.rglob("results.json"))


def test_another_go_after_a_malformed_call_is_no_success(env, tmp_path):
    scores, samples, *_ = evaluated(env, tmp_path / "out", faults={FIRST: "malformed"}, once=True)
    assert samples[f"delivery/{FIRST}"].metrics["attempts"] == 2
    assert scores["delivery", "reward", "upstream"].score == 1.0
    assert scores["delivery", "reward", "strict"].score == pytest.approx(2 / 3)


def test_a_server_that_dies_for_one_of_three_withholds_the_headline_and_is_asked_again(env, tmp_path):
    scores, samples, *_ = evaluated(env, tmp_path / "out", faults={SECOND: "down"})
    assert samples[f"delivery/{SECOND}"].status is S.INFRA_FAILURE and len(samples) == 3
    assert (
        scores["delivery", "reward", "strict"].score is None is scores["delivery", "reward", "upstream"].score
    )


def test_an_interrupted_results_file_is_taken_up(env, tmp_path):
    """A task that failed for the server is run again, those that are there are not. Same address, so same
    job."""
    tasks = env.source / FOLDER / "delivery" / "tasks.json"
    with (
        Server(Agent(tasks, {FIRST: "refused"}), "m") as a,
        Server(User(tasks), "m") as u,
        Server(Judge(), "m") as j,
    ):
        ends = [Endpoint(base_url=s.url, model="m", sampling=Sampling(temperature=0.0)) for s in (a, u, j)]
        request = EvalRequest(
            roles=EvalRoles(agent=ends[0], user=ends[1], judge=ends[2]),
            subsets=("delivery",),
            trials=1,
            seed=3,
            out=tmp_path / "out",
            limit=3,
            options={"uri": SOURCE},
        )
        first, _, _ = evaluate(Vita(), request, ROOT, say=lambda _: None, bootstrap=50)
        a.answer, judged = Agent(tasks), len(j.seen)
        second, samples, _ = evaluate(Vita(), request, ROOT, say=lambda _: None, bootstrap=50)
    assert first[0].score is None and second[0].score == 1.0
    assert len(j.seen) - judged == 1  # one window of one task


def test_a_judge_without_a_verdict_is_not_the_agents_zero(env, tmp_path):
    scores, samples, *_ = evaluated(env, tmp_path / "out", prose=True)
    assert {s.status for s in samples.values()} == {S.INFRA_FAILURE}
    assert all(s.error.startswith("judge: unreadable") for s in samples.values())
    assert (
        scores["delivery", "reward", "strict"].score is None is scores["delivery", "reward", "upstream"].score
    )


def test_doing_nothing_scores_the_floor(env, tmp_path):
    scores, *_ = evaluated(env, tmp_path / "out", agent=nothing)
    strict = scores["delivery", "reward", "strict"]
    assert strict.score == strict.floors["do_nothing"] == 0.0
