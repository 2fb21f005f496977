"""Rows, options and plans of FinMCP-Bench."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest
from kit_finmcp import rows, write

from envace.bench.finmcp import data, scores
from envace.bench.finmcp.adapter import FinMcp, chosen_of
from envace.bench.finmcp.data import FinMcpOptions
from envace.bench.finmcp.rows import RecordedCall, digest, read
from envace.bench.finmcp.tools import LONGEST, NO_RECORD, UNKNOWN, Replay
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.errors import DataError, UserError
from envace.types import Endpoint, SampleRecord, SampleStatus


@pytest.fixture
def parsed(tmp_path):
    return {r.task: r for r in read([write(tmp_path / "rows.json")])}


def test_gold_calls_keep_their_parallel_groups(parsed):
    assert parsed["multi/4"].gold == [["get_quote"], ["get_risk", "get_fees"], ["list_peers"]]
    assert parsed["multi_turn/7"].gold == [["list_holdings"], ["get_risk", "get_fees"]]
    assert (parsed["multi_turn/7"].level, parsed["multi_turn/7"].scenery) == ("hard", "portfolio")


def test_a_turn_is_all_gold_messages_up_to_its_user_message(parsed):
    turns = parsed["multi_turn/6"].turns
    assert [len(t) for t in turns] == [2, 6] and all(t[-1]["role"] == "user" for t in turns)


def test_rows_and_lines_read_alike(tmp_path):
    one = write(tmp_path / "a.json")
    two = tmp_path / "b.jsonl"
    two.write_text("\n".join(json.dumps(r) for r in rows()))
    assert read([one]) == read([two]) == read([one, two])  # the same row twice is one row


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "no such task"}, "row 0 does not fit .KeyError: 'no such task'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "does not fit .ValueError: no user message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "the role 'robot'"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "KeyError: 'name'"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, change, said):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([rows()[0] | change]))
    with pytest.raises(DataError, match=said):
        read([path])


def test_two_rows_of_one_id_are_refused(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([rows()[0], rows()[0] | {"scenery": "other"}]))
    with pytest.raises(DataError, match="another row has the id single/1"):
        read([path])


def test_every_score_says_that_nobody_else_played_and_on_which_data(tmp_path):
    options = {"uri": str(write(tmp_path / "rows.json"))}
    end = Endpoint(base_url="http://127.0.0.1:1/v1", model="m")
    asked = EvalRequest(
        roles=EvalRoles(agent=end), subsets=("single",), trials=1, seed=0, out=tmp_path, options=options
    )
    env = HarnessEnv(spec=FinMcp().spec(options), root=tmp_path, python=tmp_path / "python", source=tmp_path)
    samples = [SampleRecord(task="single/1", trial=0, seed=0, status=SampleStatus.INFRA_FAILURE)]
    for score in FinMcp().summarise(env, asked, samples, bootstrap=10):
        said = score.versions
        assert (said["user"], said["judge"], said["mode"]) == ("none", "none", "replay") and said["thinking"]
        assert said["data"] and score.data_hash.startswith(said["data"]) and score.score is None


def test_the_hash_of_the_data_is_of_content_not_of_names(tmp_path):
    one, two = write(tmp_path / "a.json"), write(tmp_path / "b" / "c.json")
    assert digest([one]) == digest([two])


def test_replay_answers_exactly_then_by_tool_then_with_an_error(parsed):
    row = parsed["multi/3"]
    schemas = [{"type": "function", "function": {"name": n}} for n in ("get_quote", "get_fees")]
    tools = Replay(schemas, row.recorded)
    calls = [("get_quote", {"fund": "B2"}), ("get_quote", {"fund": "?"}), ("get_fees", {}), ("rm", {})]
    answers = [asyncio.run(tools.call(*call)) for call in calls]
    assert [json.loads(a) for a in answers] == [
        {"nav": 2.5},
        {"nav": 1.25},
        {"error": NO_RECORD},
        {"error": UNKNOWN},
    ]


def test_a_reply_of_any_length_is_cut(parsed):
    tools = Replay([], [RecordedCall("t", {}, "x" * (LONGEST + 5))])
    assert len(asyncio.run(tools.call("t", {}))) == LONGEST


def request_of(tmp_path, **options) -> EvalRequest:
    end = Endpoint(base_url="http://127.0.0.1:1/v1", model="m", key_env="AGENT_KEY", extra_body={"x": 1})
    options = {"uri": str(write(tmp_path / "rows.json"))} | options
    return EvalRequest(
        roles=EvalRoles(agent=end),
        subsets=("multi",),
        trials=2,
        seed=1,
        out=tmp_path / "out",
        options=options,
    )


def env_of(tmp_path, request) -> HarnessEnv:
    spec = FinMcp().spec(request.options)
    return HarnessEnv(spec=spec, root=tmp_path, python=tmp_path / "python", source=tmp_path)


def test_a_live_job_names_its_two_addresses_and_keys_by_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_KEY", "canary-1")
    monkeypatch.setenv("BANK_KEY", "canary-2")
    url = "http://127.0.0.1:9/sse?apiKey={key}"
    request = request_of(tmp_path, mode="live", mcp_url=url, mcp_key_env="BANK_KEY")
    job = FinMcp().plan(env_of(tmp_path, request), request)[1]
    assert job.name == "multi-1" and job.reaches == ("http://127.0.0.1:1/v1", url)
    assert job.secrets == {"FINMCP_AGENT_KEY": "AGENT_KEY", "FINMCP_SERVER_KEY": "BANK_KEY"}
    assert "canary" not in repr(job)
    driven = json.loads(job.files["job.json"])
    assert driven["agent"]["body"]["x"] == 1 and driven["server"]["transport"] == "sse"


def test_modes_are_two_harnesses_with_their_labels(tmp_path):
    replay, live = (FinMcp().spec(o) for o in ({}, {"mode": "live", "mcp_url": "http://127.0.0.1:9/sse"}))
    assert (replay.kind, live.kind, live.lock) == ("none", "pypi", "finmcp.lock")
    assert "not official" in replay.label and "not official" not in live.label
    assert replay.ref != live.ref and replay.version == data.REVISION


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "live"}, "mode live needs mcp_url"),
        ({"mode": "dead"}, "'dead' is not one of replay, live"),
        ({"mcp_transport": "pigeon"}, "'pigeon' is not one of sse, http"),
        ({"moode": 1}, "no option 'moode'"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, said):
    with pytest.raises(UserError, match=said):
        FinMcp().spec(options)


def test_a_subset_without_rows_is_refused(tmp_path):
    request = request_of(tmp_path)
    with pytest.raises(
        UserError, match="no row is of subset 'dual'; the rows are of multi, multi_turn, single"
    ):
        chosen_of(read(data.files(FinMcpOptions.of(request.options))), "dual", (), 0, 0)


def test_the_limit_chooses_by_hash_like_everywhere(parsed):
    kept = chosen_of(list(parsed.values()), "multi", (), 2, 5)
    ranked = sorted("345", key=lambda i: hashlib.sha256(f"5/{i}".encode()).hexdigest())[:2]
    assert kept == [f"multi/{i}" for i in "345" if i in ranked]


def test_a_folder_without_rows_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no file ending in .json or .jsonl"):
        data.files(FinMcpOptions(uri=str(tmp_path / "empty")))


def test_a_floor_for_exact_match_is_the_share_of_rows_that_call_nothing(tmp_path):
    quiet = {"id": 9, "task": "single step", "messages": [{"role": "user", "content": "thanks"}]}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([rows()[0], quiet]))
    table = {r.task: r for r in read([path])}
    from envace.bench.finmcp.scores import counts

    samples = [
        SampleRecord(
            task=t, trial=0, seed=0, status=SampleStatus.SCORED, reward=0.0, metrics=counts(r.gold, [])
        )
        for t, r in table.items()
    ]
    made = {
        (s.metric, s.source): s for s in scores.records(("single",), samples, table) if s.subset == "single"
    }
    assert made["emr", "strict"].floors == {"do_nothing": 0.5} == {"do_nothing": made["emr", "strict"].score}
    assert made["tf1", "strict"].floors == {"do_nothing": 0.0} == {"do_nothing": made["tf1", "strict"].score}
