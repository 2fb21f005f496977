"""tau² for real, against servers on loopback that replay its recorded actions, with and without faults.

The package fork runs wherever the package index is reachable. Upstream runs when TAU2_GIT names a git
directory (or address) that holds its repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit_tau2 import NAMES, Truth, load_tasks, three_servers

from envace.bench.harness.build import build
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.bench.tau2.adapter import Tau2
from envace.bench.tau2.tasks import Tau2Options, chosen, domain_folder
from envace.types import Endpoint, SampleRecord, SampleStatus, ScoreRecord

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[2] / ".harness"
SEED = 300
GIT = os.environ.get("TAU2_GIT", "")
UNSOLVABLE = {"update_task_with_user_tools"}  # v1.0: its database check forbids what its assertion demands


@pytest.fixture(params=["fork", "upstream"])
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "upstream" and not GIT:
        pytest.skip("set TAU2_GIT to a git directory with tau2-bench to run upstream")
    return {"source": request.param, "request_retries": 0} | (
        {"uri": GIT} if request.param == "upstream" else {}
    )


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for role in NAMES:
        monkeypatch.setenv(f"KIT_{role.upper()}_KEY", f"canary-{role}-4711")
    yield


def play(
    out: Path, servers: dict[str, Endpoint], options: dict[str, Any], subsets: tuple[str, ...], **more: Any
) -> tuple[dict[str, ScoreRecord], dict[str, SampleRecord]]:
    """(subset/metric/source -> score, task -> sample)."""
    asked = EvalRequest(
        roles=EvalRoles(**servers),
        subsets=subsets,
        out=out,
        seed=SEED,
        options=options,
        **({"trials": 1, "concurrency": 2, "deadline_s": 1800.0} | more),
    )
    scores, samples, _ = evaluate(Tau2(), asked, ROOT, bootstrap=50, policy="kit")
    return {f"{s.subset}/{s.metric}/{s.source}": s for s in scores}, {s.task: s for s in samples}


def truth_about(options: dict[str, Any], subsets: tuple[str, ...], limit: int = 0) -> Truth:
    o, env = Tau2Options.of(options), harness(options)
    tasks: dict[str, Any] = {}
    for subset in subsets:
        ids = [t.id for t in chosen(env, o, subset, limit, SEED)]
        tasks |= load_tasks(domain_folder(env, o, subset), ids)
    return Truth(tasks=tasks)


def harness(options: dict[str, Any]) -> HarnessEnv:
    return build(Tau2().spec(options), ROOT)


def test_the_truth_replayed_scores_one_with_every_role_on_its_own_server(
    source: dict[str, Any], tmp_path: Path
) -> None:
    subsets, limit = ("airline", "retail"), 3
    if source["source"] == "upstream":
        limit = 8  # far enough to reach a task that the judge grades
    truth = truth_about(source, subsets, limit)
    with three_servers(truth) as servers:
        scores, samples = play(tmp_path / "out", servers, source | {"floor": False}, subsets, limit=limit)
    assert len(samples) == 2 * limit and all(s.reward == 1.0 for s in samples.values())
    assert scores["airline/reward/strict"].score == scores["retail/reward/upstream"].score == 1.0
    assert scores["macro/reward/derived"].score is None  # telecom was not asked for
    asked = {(role, model) for role, model, _ in truth.seen}
    judged = {("judge", NAMES["judge"])} if source["source"] == "upstream" else set()
    assert asked == {("agent", NAMES["agent"]), ("user", NAMES["user"])} | judged
    assert {key for role, _, key in truth.seen if role == "user"} == {"Bearer canary-user-4711"}
    assert truth.bodies and not any("canary" in json.dumps(b) or "api_base" in b for b in truth.bodies)
    assert "canary" not in _all_text(tmp_path)


def test_the_mock_domain_is_played_whole_beside_its_floor(source: dict[str, Any], tmp_path: Path) -> None:
    truth = truth_about(source, ("mock",))
    with three_servers(truth) as servers:
        scores, samples = play(tmp_path / "out", servers, source, ("mock",))
    solved = {task.split("/")[1]: s.reward for task, s in samples.items()}
    assert all(reward == (task not in UNSOLVABLE) for task, reward in solved.items()) and len(solved) >= 9
    score = scores["mock/reward/strict"]
    assert score.score == pytest.approx(sum(solved.values()) / len(solved))
    assert score.floors["do_nothing"] == pytest.approx(
        1 / len(solved)
    )  # one task asks for nothing to be done
    assert score.versions["tau2_source"] == source["source"] and score.versions["user"] == NAMES["user"]


def test_faults_of_the_agent_cost_it_and_nothing_is_dropped(source: dict[str, Any], tmp_path: Path) -> None:
    truth = truth_about(source, ("mock",))
    truth.faults = {
        "mock/update_task_1": "malformed",
        "mock/create_task_1_nl_eval": "overflow",
        "mock/impossible_task_1": "empty",
    }
    with three_servers(truth) as servers:
        scores, samples = play(tmp_path / "out", servers, source | {"floor": False}, ("mock",))
    failed = {task: s.error for task, s in samples.items() if s.status is SampleStatus.AGENT_FAILURE}
    assert failed == {
        "mock/update_task_1": "agent: malformed call",
        "mock/create_task_1_nl_eval": "agent: context overflow",
        "mock/impossible_task_1": "agent: empty message",
    }
    strict, upstream = scores["mock/reward/strict"], scores["mock/reward/upstream"]
    assert (
        strict.score == pytest.approx(sum(s.reward or 0 for s in samples.values()) / len(samples))
        and strict.score < 0.7
    )
    if source["source"] == "upstream":  # it leaves the failed ones out
        assert upstream.score > strict.score
    else:  # the fork counts them 0
        assert upstream.score == strict.score


def test_one_task_of_three_lost_to_the_server_stops_the_gate_and_a_second_run_mends_it(
    source: dict[str, Any], tmp_path: Path
) -> None:
    truth = truth_about(source, ("retail",), 3)
    lost, wrong, good = sorted(truth.tasks)
    truth.faults = {lost: "server", wrong: "malformed"}
    how = {"limit": 3, "options": source | {"floor": False}}
    with three_servers(truth) as servers:
        scores, samples = play(tmp_path / "out", servers, how["options"], ("retail",), limit=3)
        assert (
            samples[lost].status is SampleStatus.INFRA_FAILURE
            and "the engine has died" in samples[lost].error
        )
        assert scores["retail/reward/strict"].score is None and scores["retail/reward/upstream"].score is None
        truth.faults = {}
        scores, samples = play(tmp_path / "out", servers, how["options"], ("retail",), limit=3)
    assert samples[lost].reward == samples[good].reward == 1.0
    assert samples[wrong].status is SampleStatus.AGENT_FAILURE  # resuming is no second chance for the agent
    assert scores["retail/reward/strict"].score == pytest.approx(2 / 3)


def test_a_judge_that_dies_is_not_the_agents_zero(source: dict[str, Any], tmp_path: Path) -> None:
    if source["source"] == "fork":
        pytest.skip("no task of the fork asks a judge")
    truth = truth_about(source, ("retail",), 8)
    judged = {i for i, t in truth.tasks.items() if t["evaluation_criteria"].get("nl_assertions")}
    truth.faults = dict.fromkeys(judged, "judge-down")
    with three_servers(truth) as servers:
        scores, samples = play(tmp_path / "out", servers, source | {"floor": False}, ("retail",), limit=8)
    lost = {i for i, s in samples.items() if s.status is SampleStatus.INFRA_FAILURE}
    assert judged and lost == judged and all(samples[i].error.startswith("judge: ") for i in lost)
    assert scores["retail/reward/strict"].score is None


@pytest.mark.skipif(not GIT, reason="set TAU2_GIT to a git directory with tau2-bench")
def test_two_revisions_stand_side_by_side() -> None:
    built = [harness({"uri": GIT, "revision": revision}) for revision in ("v1.0.1", "2026-08-18")]
    assert built[0].root != built[1].root and all(env.python.exists() for env in built)
    assert {env.identity.split("(")[1] for env in built} == {"v1.0.1)", "2026-08-18)"}
    old, new = (harness({"uri": GIT, "revision": r}).root for r in ("v1.0.1", "2026-08-18"))
    assert (old, new) == (built[0].root, built[1].root)  # neither was made anew


def _all_text(folder: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file())
