"""Rows, options and plans of FinMCP-Bench, and its rows from a hub on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path

import pytest
from kit_finmcp import rows, write

from envace.bench.finmcp import data, scores
from envace.bench.finmcp.adapter import FinMcp, chosen_of
from envace.bench.finmcp.data import FinMcpOptions
from envace.bench.finmcp.rows import RecordedCall, digest, read
from envace.bench.finmcp.tools import LONGEST, NO_RECORD, UNKNOWN, Replay
from envace.bench.harness.registry import lacking
from envace.bench.harness.spec import EvalRequest, EvalRoles, HarnessEnv
from envace.errors import DataError, UserError
from envace.types import Endpoint, SampleRecord, SampleStatus

sys.path.append(str(Path(__file__).parents[1] / "data"))
from hub_kit import ID, REVISION, Hub, served  # noqa: E402

FILE = "test/benchmark_multi_tool.json"


@pytest.fixture
def parsed(tmp_path):
    return {r.task: r for r in read([write(tmp_path / "rows.json")])}


def written(path, *own) -> Path:
    path.write_text(json.dumps(own))
    return path


def request_of(tmp_path, *subsets, **options) -> EvalRequest:
    end = Endpoint(base_url="http://127.0.0.1:1/v1", model="m", key_env="AGENT_KEY", extra_body={"x": 1})
    asked = {
        "options": {"uri": str(write(tmp_path / "rows.json"))} | options,
        "subsets": subsets or ("multi",),
    }
    return EvalRequest(roles=EvalRoles(agent=end), trials=2, seed=1, out=tmp_path / "out", **asked)


def env_of(tmp_path, request) -> HarnessEnv:
    spec = FinMcp().spec(request.options)
    return HarnessEnv(spec=spec, root=tmp_path, python=tmp_path / "python", source=tmp_path)


def test_gold_calls_keep_their_parallel_groups_and_turns_end_with_their_user_message(parsed):
    assert parsed["multi/4"].gold == [["get_quote"], ["get_risk", "get_fees"], ["list_peers"]]
    assert parsed["multi_turn/7"].gold == [["list_holdings"], ["get_risk", "get_fees"]]
    assert (parsed["multi_turn/7"].level, parsed["multi_turn/7"].scenery) == ("hard", "portfolio")
    turns = parsed["multi_turn/6"].turns
    assert [len(t) for t in turns] == [2, 6] and all(t[-1]["role"] == "user" for t in turns)


def test_a_recorded_reply_belongs_to_the_call_it_follows(tmp_path):
    """Ids begin anew in each message of many servers, and some replies have none."""

    def step(*calls, named=True):
        ids = [f"call_{i}" for i in range(len(calls))]
        asked = [{"id": i, "function": {"name": n, "arguments": "{}"}} for i, (n, _) in zip(ids, calls)]
        yield {"role": "assistant", "tool_calls": asked}
        for i, (_, reply) in reversed([*zip(ids, calls)]) if named else zip(ids, calls):
            yield {"role": "tool", "content": reply} | ({"tool_call_id": i} if named else {})

    user = {"role": "user", "content": "go"}
    messages = [
        user,
        *step(("a", "1"), ("b", "2")),
        user,
        *step(("a", "3")),
        *step(("c", "4"), ("a", "5"), named=False),
    ]
    messages.append({"role": "assistant", "tool_calls": [{"id": "call_0", "function": {"name": "d"}}]})
    (row,) = read([written(tmp_path / "r.json", {"id": 1, "task": "multi turn", "messages": messages})])
    found = [[(c.name, c.reply) for c in group] for group in row.groups]
    assert found == [[("a", "1"), ("b", "2")], [("a", "3")], [("c", "4"), ("a", "5")], [("d", "")]]


def test_rows_and_lines_read_alike_and_are_known_by_their_content(tmp_path):
    one, two = write(tmp_path / "a.json"), tmp_path / "b.jsonl"
    two.write_text("\n".join(json.dumps(r) for r in rows()))
    assert read([one]) == read([two]) == read([one, two])  # the same row twice is one row
    assert digest([one]) == digest([write(tmp_path / "b" / "c.json")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "no such task"}, "row 0 does not fit .KeyError: 'no such task'"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "does not fit .ValueError: no user message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "the role 'robot'"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "KeyError: 'name'"),
        ({}, "another row has the id single/1"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, change, said):
    with pytest.raises(DataError, match=said):
        read([written(tmp_path / "rows.json", rows()[0] | change, rows()[0] | {"scenery": "other"})])


def test_every_score_says_that_nobody_else_played_and_on_which_data(tmp_path):
    asked = request_of(tmp_path, "single")
    samples = [SampleRecord(task="single/1", trial=0, seed=0, status=SampleStatus.INFRA_FAILURE)]
    for score in FinMcp().summarise(env_of(tmp_path, asked), asked, samples, bootstrap=10):
        said = score.versions
        assert (said["user"], said["judge"], said["mode"]) == ("none", "none", "replay") and said["thinking"]
        assert said["data"] and score.data_hash.startswith(said["data"]) and score.score is None


def test_replay_answers_exactly_then_by_tool_then_with_an_error_and_cut_to_a_length(parsed):
    schemas = [{"type": "function", "function": {"name": n}} for n in ("get_quote", "get_fees")]
    tools = Replay(schemas, parsed["multi/3"].recorded)
    calls = [("get_quote", {"fund": "B2"}), ("get_quote", {"fund": "?"}), ("get_fees", {}), ("rm", {})]
    answers = [json.loads(asyncio.run(tools.call(*call))) for call in calls]
    assert answers == [{"nav": 2.5}, {"nav": 1.25}, {"error": NO_RECORD}, {"error": UNKNOWN}]
    long = Replay([], [RecordedCall("t", {}, "x" * (LONGEST + 5))])
    assert len(asyncio.run(long.call("t", {}))) == LONGEST


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


def test_modes_are_two_harnesses_with_their_labels():
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


def test_the_limit_chooses_by_hash_like_everywhere_and_an_absent_subset_is_refused(parsed, tmp_path):
    kept = chosen_of(list(parsed.values()), "multi", (), 2, 5)
    ranked = sorted("345", key=lambda i: hashlib.sha256(f"5/{i}".encode()).hexdigest())[:2]
    assert kept == [f"multi/{i}" for i in "345" if i in ranked]
    with pytest.raises(
        UserError, match="no row is of subset 'dual'; the rows are of multi, multi_turn, single"
    ):
        chosen_of(list(parsed.values()), "dual", (), 0, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no file ending in .json or .jsonl"):
        data.files(FinMcpOptions(uri=str(tmp_path / "empty")))


def test_a_floor_for_exact_match_is_the_share_of_rows_that_call_nothing(tmp_path):
    quiet = {"id": 9, "task": "single step", "messages": [{"role": "user", "content": "thanks"}]}
    table = {r.task: r for r in read([written(tmp_path / "rows.json", rows()[0], quiet)])}
    how = {"trial": 0, "seed": 0, "status": SampleStatus.SCORED, "reward": 0.0}
    samples = [SampleRecord(task=t, metrics=scores.counts(r.gold, []), **how) for t, r in table.items()]
    made = {(s.subset, s.metric, s.source): s for s in scores.records(("single",), samples, table)}
    for metric, floor in (("emr", 0.5), ("tf1", 0.0)):
        record = made["single", metric, "strict"]
        assert record.floors == {"do_nothing": floor} == {"do_nothing": record.score}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    body = json.dumps(rows()).encode()
    with served(Hub({"README.md": b"# data", FILE: body, "train/other.json": b"[]"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("ENVACE_STATE", str(tmp_path / "state"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        data._fetched.cache_clear()
        yield hub


def hub_options(hub: Hub, **changes) -> FinMcpOptions:
    sums = {FILE: hashlib.sha256(hub.files[FILE]).hexdigest()}
    return FinMcpOptions(**{"uri": ID, "revision": REVISION, "sha256": sums} | changes)


def test_rows_come_from_the_pinned_commit_and_stay_below_the_state_folder(hub, tmp_path, monkeypatch):
    own = hub_options(hub)
    monkeypatch.setattr(data, "FinMcpOptions", lambda: own)
    env = env_of(tmp_path, request_of(tmp_path))
    assert len(lacking(env)) == 1 and "python -m envace.bench.finmcp.data" in lacking(env)[0]
    paths = data.files(own)
    assert lacking(env) == []
    assert len(read(paths)) == 8 and not hub.asked("other.json")
    assert all(p.is_relative_to(tmp_path / "state") for p in paths)
    data._fetched.cache_clear()
    hub.fails = 503  # gone; what is here and verified serves on
    assert data.files(own) == paths


def test_rows_of_a_hub_are_pinned_by_commit_and_checksum(hub):
    # the checksums of our pin are not asked of another data set
    assert len(read(data.files(hub_options(hub, sha256=dict(data.SUMS))))) == 8
    with pytest.raises(DataError, match="has sha256"):
        data.files(hub_options(hub, sha256={FILE: "0" * 64}))
    with pytest.raises(UserError, match="40-digit commit"):
        data.files(hub_options(hub, revision="main"))
