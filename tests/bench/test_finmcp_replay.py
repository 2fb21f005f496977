"""FinMCP-Bench's protocol with recorded replies, against a loopback agent that knows the gold calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from kit_finmcp import Gold, write
from kit_server import Server

from envace.bench.finmcp.adapter import FinMcp
from envace.bench.finmcp.run import run
from envace.bench.harness.answers import append_row as append
from envace.bench.harness.answers import read_rows
from envace.bench.harness.build import build
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv, RawRun
from envace.bench.summary import complete_plan
from envace.errors import EnvironmentUnready
from envace.types import Endpoint, SampleRecord, SampleStatus, ScoreRecord

ALL = ("single", "multi", "multi_turn")
S = SampleStatus


def request_of(tmp_path: Path, server: Server, **changes) -> EvalRequest:
    uri = str(write(tmp_path / "rows" / "rows.json"))
    end = Endpoint(base_url=server.url, model=server.model, key_env="FINMCP_TEST_KEY")
    fields = {
        "subsets": ALL,
        "trials": 1,
        "seed": 3,
        "out": tmp_path / "out",
        "options": {"uri": uri},
    } | changes
    return EvalRequest(roles=EvalRoles(agent=end), **fields)


def played(request: EvalRequest, env: HarnessEnv | None = None) -> tuple[dict, list[SampleRecord]]:
    """Every job in this process: (subset, metric, source) -> score, and the samples."""
    adapter = FinMcp()
    env = env or build(adapter.spec(request.options), request.out.parent / "harness", lambda _: None)
    jobs, runs = adapter.plan(env, request), []
    for job in jobs:
        folder = request.out / job.name
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(json.loads(job.files["job.json"]) | {"pause_s": 0.01}))
        runs.append(RawRun(job=job, folder=folder, code=0, seconds=1, log=folder / "log.txt", isolated=False))
    samples = complete_plan(adapter.parse(env, request, runs), [p for j in jobs for p in j.planned])
    scores = adapter.summarise(env, request, samples, bootstrap=50)
    return {(s.subset, s.metric, s.source): s for s in scores}, samples


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("FINMCP_TEST_KEY", "canary-finmcp-key")
    monkeypatch.setenv("FINMCP_AGENT_KEY", "canary-finmcp-key")  # as the runner's process would see it


def perfect(scores: dict[tuple, ScoreRecord]) -> bool:
    """Of what is not withheld for lack of a subset."""
    return {s.score for s in scores.values() if not s.skipped} == {1.0}


def test_replaying_gold_scores_one_everywhere(tmp_path):
    agent = Gold()
    with Server(agent, "m") as server:
        scores, samples = played(request_of(tmp_path, server))
        assert perfect(scores) and {s.status for s in samples} == {S.SCORED}
        assert {k[0] for k in scores} >= {*ALL, "all", "level-easy", "level-hard", "scenery-funds"}
        assert json.dumps({"volatility": 0.12}) in agent.observed  # the recorded reply was shown
        for headers, raw in server.seen:
            assert {k.lower(): v for k, v in headers.items()}["authorization"] == "Bearer canary-finmcp-key"
            assert b"canary" not in raw and server.url.encode() not in raw
        seeds = [json.loads(raw)["seed"] for _, raw in server.seen]
        assert len(set(seeds)) == len(seeds)


def test_each_turn_starts_from_the_gold_conversation(tmp_path):
    """A model that missed the first turn's call still finds it in the second turn's history."""
    with Server(Gold({6: "silent"}), "m") as server:
        played(request_of(tmp_path, server, subsets=("multi_turn",)))
        second = [
            b for _, raw in server.seen if "And its fees?" in str((b := json.loads(raw))["messages"][-1])
        ]
    history = second[0]["messages"]
    assert [m["role"] for m in history] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert history[2]["tool_calls"][0]["function"]["name"] == "get_quote"


def test_a_thought_goes_back_within_its_turn_and_not_into_the_next(tmp_path):
    class Thinking(Gold):
        def __call__(self, body):
            status, reply = super().__call__(body)
            reply["choices"][0]["message"]["reasoning_content"] = "musing"
            return status, reply

    with Server(Thinking(), "m") as server:
        _, samples = played(request_of(tmp_path, server, subsets=("multi_turn",), thinking=True))
        bodies = [json.loads(raw) for _, raw in server.seen]
    assert {s.reward for s in samples} == {1.0}
    for body in bodies:
        last = max(i for i, m in enumerate(body["messages"]) if m["role"] == "user")
        own = [m for m in body["messages"][last:] if m["role"] == "assistant"]
        assert all(m["reasoning_content"] == "musing" for m in own)
        assert not any("reasoning_content" in m for m in body["messages"][:last])
        assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert any(m["role"] == "assistant" and m.get("reasoning_content") for b in bodies for m in b["messages"])


def test_tools_are_mined_from_gold_calls_and_offered_whole(tmp_path):
    with Server(Gold(), "m") as server:
        played(request_of(tmp_path, server, subsets=("single",)))
        offered = {t["function"]["name"]: t for t in json.loads(server.seen[0][1])["tools"]}
    assert set(offered) == {"get_quote", "get_risk", "get_fees", "list_peers", "list_holdings"}
    assert offered["get_risk"]["function"]["parameters"]["properties"]["days"] == {"type": "integer"}


def test_an_empty_prediction_is_scored_zero_not_dropped(tmp_path):
    for fault in ("silent", "empty"):
        with Server(Gold({1: fault}), "m") as server:
            scores, samples = played(request_of(tmp_path / fault, server, subsets=("single",)))
        one = samples[0]
        assert (one.status, one.reward, one.metrics["fn"]) == (S.SCORED, 0.0, 1.0)
        assert scores["single", "tr", "strict"].score == scores["single", "tr", "upstream"].score == 0.5


@pytest.mark.parametrize("fault", ["malformed", "overflow"])
def test_a_failure_of_the_agent_is_dropped_upstream_and_counts_here(tmp_path, fault):
    with Server(Gold({1: fault}), "m") as server:
        scores, samples = played(request_of(tmp_path, server, subsets=("single",)))
    assert samples[0].status is S.AGENT_FAILURE and "upstream" not in samples[0].metrics
    assert samples[0].error.startswith(
        "agent: malformed_call" if fault == "malformed" else "agent: context_overflow"
    )
    assert scores["single", "tf1", "upstream"].score == 1.0
    assert scores["single", "tr", "strict"].score == 0.5 and scores["single", "emr", "strict"].score == 0.5
    assert scores["single", "tf1", "strict"].n_agent_failure == 1


@pytest.mark.parametrize("fault", ["down", "refused"])
def test_a_failure_of_the_endpoint_has_no_score_and_withholds_the_headline(tmp_path, fault):
    with Server(Gold({3: fault}), "m") as server:
        scores, samples = played(request_of(tmp_path, server, subsets=("multi",)))
    assert [s.status for s in samples] == [S.INFRA_FAILURE, S.SCORED, S.SCORED]  # one of three
    assert samples[0].error.startswith("agent: unreachable" if fault == "down" else "agent: http_401")
    assert (
        scores["multi", "tf1", "strict"].score is None
        and scores["multi", "tf1", "strict"].n_infra_failure == 1
    )
    assert scores["multi", "tf1", "upstream"].score is None  # two of three would print 1.0


def test_order_in_a_parallel_group_separates_the_two_readings_of_emr(tmp_path):
    with Server(Gold({4: "swap"}), "m") as server:
        scores, _ = played(request_of(tmp_path, server, subsets=("multi",)))
    assert scores["multi", "tf1", "strict"].score == scores["multi", "emr_described", "strict"].score == 1.0
    assert scores["multi", "emr", "strict"].score == pytest.approx(2 / 3)


def test_other_arguments_get_the_same_tools_recorded_reply(tmp_path):
    agent = Gold({1: "args"})
    with Server(agent, "m") as server:
        scores, _ = played(request_of(tmp_path, server, subsets=("single",)))
    assert json.dumps({"nav": 1.25}) in agent.observed and scores["single", "tf1", "strict"].score == 1.0


def test_a_tool_without_a_record_here_answers_an_error_and_the_call_counts_against(tmp_path):
    agent = Gold({1: "extra"})
    with Server(agent, "m") as server:
        scores, samples = played(request_of(tmp_path, server, subsets=("single",)))
    assert any("no reply to this tool is recorded" in x for x in agent.observed)
    assert samples[0].metrics["fp"] == 1.0 and scores["single", "tp", "strict"].score == pytest.approx(2 / 3)


def test_trials_are_jobs_of_their_own_with_seeds_of_their_own(tmp_path):
    with Server(Gold(), "m") as server:
        scores, samples = played(request_of(tmp_path, server, subsets=("single",), trials=2))
        seeds = {json.loads(raw)["seed"] for _, raw in server.seen}
    one = scores["single", "tf1", "strict"]
    assert (one.score, one.n_tasks, one.n_trials, one.n_scored) == (1.0, 2, 2, 4)
    assert {s.seed for s in samples} == {3000, 3001} and len(seeds) == len(server.seen)


def test_calls_in_a_turn_are_capped(tmp_path):
    with Server(Gold({1: "endless"}), "m") as server:
        request = request_of(tmp_path, server, subsets=("single",))
        request.options["max_calls"] = 4
        _, samples = played(request)
    assert samples[0].stop == "call_budget" and samples[0].metrics["calls"] == 4.0


def test_an_interrupted_run_goes_on_and_a_failed_server_is_asked_again(tmp_path):
    with Server(Gold({3: "down"}), "m") as server:
        request = request_of(tmp_path, server, subsets=("multi",))
        played(request)
        file = tmp_path / "out" / "multi-0" / "samples.jsonl"
        with file.open("a") as f:
            f.write('{"task": "multi/9", "sta')  # killed while writing
        server.answer, asked = Gold(), len(server.seen)
        scores, _ = played(request)
        again = [json.loads(raw)["messages"][1]["content"] for _, raw in server.seen[asked:]]
    assert set(again) == {"Compare fund A1 with its peer."} and perfect(scores)
    assert len(read_rows(file)) == 4  # three at first, the failed one once more


def test_text_with_line_separators_stays_one_line(tmp_path):
    file = tmp_path / "samples.jsonl"
    append(file, {"task": "single/1", "status": "scored", "text": "a\u2028b\x85c"})
    assert [line["text"] for line in read_rows(file)] == ["a\u2028b\x85c"]


def test_a_mistake_of_the_runner_is_named_and_has_no_score(tmp_path, monkeypatch):
    async def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("envace.bench.finmcp.run.play", broken)
    with Server(Gold(), "m") as server:
        _, samples = played(request_of(tmp_path, server, subsets=("single",)))
    assert {(s.status, s.error) for s in samples} == {(S.INFRA_FAILURE, "harness: RuntimeError: a bug")}


def test_the_whole_way_through_the_runner(tmp_path):
    """A process of its own a job, with the key in its environment only."""
    quiet = {"say": lambda _: None, "bootstrap": 50}
    with Server(Gold({2: "malformed"}), "m") as server:
        request = request_of(tmp_path, server, subsets=("single", "multi"))
        request.options["parallel"] = 2
        scores, samples, runs = evaluate(FinMcp(), request, tmp_path / "harness", **quiet)
        asked = len(server.seen)
        again, _, _ = evaluate(FinMcp(), request, tmp_path / "harness", **quiet)
        assert len(server.seen) == asked and again == scores  # done is done
    assert [r.code for r in runs] == [0, 0] and len(samples) == 5
    by = {(s.subset, s.metric, s.source): s for s in scores}
    assert by["multi", "tf1", "strict"].score == 1.0
    assert by["single", "tf1", "strict"].score < by["single", "tf1", "upstream"].score == 1.0
    for name in ("all", "level-easy", "scenery-funds"):  # each lacks the conversations of a subset
        assert by[name, "tf1", "strict"].score is None is by[name, "tf1", "upstream"].score
        assert by[name, "tf1", "strict"].skipped == ("multi_turn: not asked for",)
    assert "replay, not official" in by["all", "tf1", "strict"].harness
    assert not [f for f in (tmp_path / "out").rglob("*") if f.is_file() and b"canary" in f.read_bytes()]


def test_a_dead_server_is_told_before_anything_starts(tmp_path):
    with Server(Gold(), "m") as server:
        request = request_of(tmp_path, server)
    with pytest.raises(EnvironmentUnready, match="no model server answers"):
        evaluate(FinMcp(), request, tmp_path / "harness", say=lambda _: None, probe_s=0.2)
