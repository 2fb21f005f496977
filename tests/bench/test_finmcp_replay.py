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
from envace.bench.harness.answers import append_row, read_rows
from envace.bench.harness.build import build
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.spec import EvalRequest, EvalRoles, RawRun
from envace.bench.summary import complete_plan
from envace.types import Endpoint, SampleRecord, SampleStatus, ScoreRecord

ALL = ("single", "multi", "multi_turn")
S = SampleStatus


def request_of(tmp_path: Path, server: Server, **changes) -> EvalRequest:
    end = Endpoint(base_url=server.url, model=server.model, key_env="FINMCP_TEST_KEY")
    options = {"uri": str(write(tmp_path / "rows" / "rows.json"))}
    known = {"subsets": ALL, "trials": 1, "seed": 3, "out": tmp_path / "out", "options": options}
    return EvalRequest(roles=EvalRoles(agent=end), **(known | changes))


def played(request: EvalRequest) -> tuple[dict, list[SampleRecord]]:
    """Every job in this process: (subset, metric, source) -> score, and the samples."""
    adapter = FinMcp()
    env = build(adapter.spec(request.options), request.out.parent / "harness", lambda _: None)
    jobs, runs = adapter.plan(env, request), []
    for job in jobs:
        folder = request.out / job.name
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(json.loads(job.files["job.json"]) | {"pause_s": 0.01}))
        runs.append(RawRun(job=job, folder=folder, code=0, seconds=1, log=folder / "log.txt", isolated=False))
    samples = complete_plan(adapter.parse(env, request, runs), [p for j in jobs for p in j.planned])
    scores = adapter.summarise(env, request, samples, bootstrap=50)
    return {(s.subset, s.metric, s.source): s for s in scores}, samples


def one_go(
    tmp_path: Path, agent: Gold, *subsets: str, **changes
) -> tuple[dict, list[SampleRecord], list[dict]]:
    """Scores, samples and the bodies that the agent was sent."""
    with Server(agent, "m") as server:
        scores, samples = played(request_of(tmp_path, server, subsets=subsets, **changes))
        return scores, samples, [json.loads(raw) for _, raw in server.seen]


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
    _, _, bodies = one_go(tmp_path, Gold({6: "silent"}), "multi_turn")
    history = next(b["messages"] for b in bodies if "And its fees?" in str(b["messages"][-1]))
    assert [m["role"] for m in history] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert history[2]["tool_calls"][0]["function"]["name"] == "get_quote"


def test_a_thought_goes_back_within_its_turn_and_not_into_the_next(tmp_path):
    class Thinking(Gold):
        def __call__(self, body):
            status, reply = super().__call__(body)
            reply["choices"][0]["message"]["reasoning_content"] = "musing"
            return status, reply

    _, samples, bodies = one_go(tmp_path, Thinking(), "multi_turn", thinking=True)
    assert {s.reward for s in samples} == {1.0}
    for body in bodies:
        last = max(i for i, m in enumerate(body["messages"]) if m["role"] == "user")
        own = [m for m in body["messages"][last:] if m["role"] == "assistant"]
        assert all(m["reasoning_content"] == "musing" for m in own)
        assert not any("reasoning_content" in m for m in body["messages"][:last])
        assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert any(m["role"] == "assistant" and m.get("reasoning_content") for b in bodies for m in b["messages"])


def test_tools_are_mined_from_gold_calls_and_offered_whole(tmp_path):
    _, _, bodies = one_go(tmp_path, Gold(), "single")
    offered = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in bodies[0]["tools"]}
    assert set(offered) == {"get_quote", "get_risk", "get_fees", "list_peers", "list_holdings"}
    assert offered["get_risk"]["days"] == {"type": "integer"}


@pytest.mark.parametrize("fault", ["silent", "empty"])
def test_an_empty_prediction_is_scored_zero_not_dropped(tmp_path, fault):
    scores, (one, _), _ = one_go(tmp_path, Gold({1: fault}), "single")
    assert (one.status, one.reward, one.metrics["fn"]) == (S.SCORED, 0.0, 1.0)
    assert scores["single", "tr", "strict"].score == scores["single", "tr", "upstream"].score == 0.5


@pytest.mark.parametrize(
    ("fault", "cause"), [("malformed", "malformed_call"), ("overflow", "context_overflow")]
)
def test_a_failure_of_the_agent_is_dropped_upstream_and_counts_here(tmp_path, fault, cause):
    scores, samples, _ = one_go(tmp_path, Gold({1: fault}), "single")
    assert samples[0].status is S.AGENT_FAILURE and "upstream" not in samples[0].metrics
    assert samples[0].error.startswith(f"agent: {cause}")
    assert scores["single", "tf1", "upstream"].score == 1.0
    assert scores["single", "tr", "strict"].score == 0.5 and scores["single", "emr", "strict"].score == 0.5
    assert scores["single", "tf1", "strict"].n_agent_failure == 1


@pytest.mark.parametrize(("fault", "cause"), [("down", "unreachable"), ("refused", "http_401")])
def test_a_failure_of_the_endpoint_has_no_score_and_withholds_the_headline(tmp_path, fault, cause):
    scores, samples, _ = one_go(tmp_path, Gold({3: fault}), "multi")
    assert [s.status for s in samples] == [S.INFRA_FAILURE, S.SCORED, S.SCORED]  # one of three
    assert samples[0].error.startswith(f"agent: {cause}")
    strict, upstream = scores["multi", "tf1", "strict"], scores["multi", "tf1", "upstream"]
    assert strict.score is None is upstream.score and strict.n_infra_failure == 1  # two of three print 1.0


def test_order_in_a_parallel_group_separates_the_two_readings_of_emr(tmp_path):
    scores, _, _ = one_go(tmp_path, Gold({4: "swap"}), "multi")
    assert scores["multi", "tf1", "strict"].score == scores["multi", "emr_described", "strict"].score == 1.0
    assert scores["multi", "emr", "strict"].score == pytest.approx(2 / 3)


def test_a_call_is_answered_by_the_same_tools_record_and_one_without_a_record_counts_against(tmp_path):
    agent = Gold({1: "args"})
    scores, _, _ = one_go(tmp_path / "args", agent, "single")
    assert json.dumps({"nav": 1.25}) in agent.observed and scores["single", "tf1", "strict"].score == 1.0
    agent = Gold({1: "extra"})
    scores, samples, _ = one_go(tmp_path / "extra", agent, "single")
    assert any("no reply to this tool is recorded" in x for x in agent.observed)
    assert samples[0].metrics["fp"] == 1.0 and scores["single", "tp", "strict"].score == pytest.approx(2 / 3)


def test_trials_are_jobs_of_their_own_with_seeds_of_their_own(tmp_path):
    scores, samples, bodies = one_go(tmp_path, Gold(), "single", trials=2)
    one = scores["single", "tf1", "strict"]
    assert (one.score, one.n_tasks, one.n_trials, one.n_scored) == (1.0, 2, 2, 4)
    assert {s.seed for s in samples} == {3000, 3001} and len({b["seed"] for b in bodies}) == len(bodies)


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
        with pytest.warns(UserWarning, match="samples.jsonl: 1 torn lines"):
            scores, _ = played(request)
            assert len(read_rows(file)) == 4  # three at first, the failed one once more
        again = [json.loads(raw)["messages"][1]["content"] for _, raw in server.seen[asked:]]
    assert set(again) == {"Compare fund A1 with its peer."} and perfect(scores)


def test_text_with_line_separators_stays_one_line(tmp_path):
    file = tmp_path / "new" / "samples.jsonl"
    append_row(file, {"text": "a\u2028b\x85c"})
    assert read_rows(file) == [{"text": "a\u2028b\x85c"}]


def test_a_mistake_of_the_runner_is_named_and_has_no_score(tmp_path, monkeypatch):
    async def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("envace.bench.finmcp.run.play", broken)
    _, samples, _ = one_go(tmp_path, Gold(), "single")
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
