"""VitaBench itself, from a local git directory, against three loopback servers.

Its repository is in no package index, so this runs where ENVACE_VITA_SOURCE names a git directory that holds
the pinned revision; elsewhere the recorded outputs under fixtures/vita stand for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit_server import Server
from kit_vita import Agent, Judge, User, nothing

from envace.bench.harness.build import build
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.bench.vita.adapter import Vita
from envace.bench.vita.tasks import FOLDER
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


@pytest.mark.parametrize(
    ("fault", "once", "error", "upstream"),
    [
        ("malformed", False, "agent: malformed_call", 1.0),  # upstream drops it
        ("overflow", False, "agent: context_overflow", 1.0),
        ("malformed", True, "agent: malformed_call, then tried again", 1.0),  # another go is no success
        ("empty", False, "agent: empty_message", 2 / 3),
        ("raw", True, "agent: malformed_call (call markup in the text)", None),
    ],
)
def test_what_the_agent_broke_counts_zero_whatever_upstream_makes_of_it(
    env, tmp_path, fault, once, error, upstream
):
    scores, samples, *_ = evaluated(env, tmp_path / "out", faults={FIRST: fault}, once=once)
    broken = samples[f"delivery/{FIRST}"]
    assert broken.status is S.AGENT_FAILURE and broken.error.startswith(error)
    assert scores["delivery", "reward", "strict"].score == pytest.approx(2 / 3)
    assert upstream is None or scores["delivery", "reward", "upstream"].score == pytest.approx(upstream)
    assert (fault, once) != ("malformed", True) or broken.metrics["attempts"] == 2


@pytest.mark.parametrize("how", [{"faults": {SECOND: "down"}}, {"prose": True}])
def test_a_server_that_dies_or_a_judge_without_a_verdict_withholds_the_headline(env, tmp_path, how):
    scores, samples, *_ = evaluated(env, tmp_path / "out", **how)
    lost = [s for s in samples.values() if s.status is S.INFRA_FAILURE]
    assert len(samples) == 3 and len(lost) == (3 if "prose" in how else 1)
    assert all(s.error.startswith("judge: unreadable") for s in lost) is ("prose" in how)
    assert scores["delivery", "reward", "strict"].score is None
    assert scores["delivery", "reward", "upstream"].score is None


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


def test_doing_nothing_scores_the_floor(env, tmp_path):
    scores, *_ = evaluated(env, tmp_path / "out", agent=nothing)
    strict = scores["delivery", "reward", "strict"]
    assert strict.score == strict.floors["do_nothing"] == 0.0
