"""FinMCP-Bench's protocol against a real tool server on the loopback, through the harness runner."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit_finmcp import SERVER, Gold, write
from kit_server import Server

from envace.bench.finmcp.adapter import FinMcp
from envace.bench.harness.build import build
from envace.bench.harness.pipeline import evaluate
from envace.bench.harness.spec import EvalRequest, EvalRoles
from envace.types import Endpoint, SampleStatus

pytestmark = pytest.mark.heavy  # builds the environment with the tool servers' client on first use
ROOT = Path(__file__).resolve().parents[2] / ".harness"
S = SampleStatus
QUIET = {"say": lambda _: None, "bootstrap": 50}


def options_of(tmp_path: Path, port: int = 1, transport: str = "sse", **more) -> dict:
    path = "sse" if transport == "sse" else "mcp"
    uri = str(write(tmp_path / "rows" / "rows.json"))
    return {
        "uri": uri,
        "mode": "live",
        "mcp_url": f"http://127.0.0.1:{port}/{path}",
        "mcp_transport": transport,
    } | more


def request_of(tmp_path: Path, server: Server, options: dict, **changes) -> EvalRequest:
    end = Endpoint(base_url=server.url, model="m", key_env="FINMCP_TEST_KEY")
    fields = {
        "subsets": ("single", "multi", "multi_turn"),
        "trials": 1,
        "seed": 3,
        "out": tmp_path / "out",
    } | changes
    return EvalRequest(roles=EvalRoles(agent=end), options=options, **fields)


@contextmanager
def bank(tmp_path: Path, transport: str, key: str = "") -> Iterator[int]:
    """A tool server, with its port."""
    env = build(FinMcp().spec(options_of(tmp_path)), ROOT)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    argv = [str(env.python), str(SERVER), transport, str(port), options_of(tmp_path)["uri"], key]
    process = subprocess.Popen(argv)
    try:
        for _ in range(200):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv("FINMCP_TEST_KEY", "canary-agent-key")
    monkeypatch.setenv("FINMCP_BANK_KEY", "canary-bank-key")


@pytest.mark.parametrize("transport", ["sse", "http"])
def test_gold_calls_to_a_real_tool_server_score_one(tmp_path, transport):
    agent = Gold()
    with bank(tmp_path, transport, "canary-bank-key") as port, Server(agent, "m") as server:
        options = options_of(tmp_path, port, transport, mcp_key_env="FINMCP_BANK_KEY")
        scores, samples, runs = evaluate(FinMcp(), request_of(tmp_path, server, options), ROOT, **QUIET)
        offered = {t["function"]["name"] for t in json.loads(server.seen[0][1])["tools"]}
    assert {s.score for s in scores} == {1.0} and {s.status for s in samples} == {S.SCORED}
    assert offered == {
        "get_quote",
        "get_risk",
        "get_fees",
        "list_peers",
        "list_holdings",
    }  # both pages of the list
    assert json.dumps({"volatility": 0.12}) in agent.observed
    assert {s.versions["mode"] for s in scores} == {"live"} and "not official" not in scores[0].harness
    print("isolated:", [r.isolated for r in runs])
    assert not [f for f in (tmp_path / "out").rglob("*") if f.is_file() and b"canary" in f.read_bytes()]


def test_a_tool_that_refuses_is_an_observation(tmp_path):
    agent = Gold({1: "args"})
    with bank(tmp_path, "sse") as port, Server(agent, "m") as server:
        request = request_of(tmp_path, server, options_of(tmp_path, port), subsets=("single",))
        scores, samples, _ = evaluate(FinMcp(), request, ROOT, **QUIET)
    assert "no such fund" in agent.observed and {s.status for s in samples} == {S.SCORED}
    assert scores[0].score == 1.0  # names are what is scored


def test_a_tool_server_that_is_away_or_refuses_the_key_gives_no_score(tmp_path):
    with Server(Gold(), "m") as server:
        request = request_of(tmp_path / "a", server, options_of(tmp_path), subsets=("single",))
        scores, samples, _ = evaluate(FinMcp(), request, ROOT, **QUIET)
        assert {s.status for s in samples} == {S.INFRA_FAILURE} and scores[0].score is None
        assert all(s.error.startswith("tools: unreachable") for s in samples), samples
        with bank(tmp_path, "sse", "another key") as port:
            url = f"http://127.0.0.1:{port}/sse?apiKey={{key}}"  # which the client quotes in its error
            options = options_of(tmp_path, mcp_url=url, mcp_key_env="FINMCP_BANK_KEY")
            request = request_of(tmp_path / "b", server, options, subsets=("single",))
            _, samples, _ = evaluate(FinMcp(), request, ROOT, **QUIET)
    assert {s.status for s in samples} == {S.INFRA_FAILURE} and "401" in samples[0].error
    assert "apiKey" in samples[0].error and "canary" not in samples[0].error
    assert not [f for f in (tmp_path / "b").rglob("*") if f.is_file() and b"canary" in f.read_bytes()]
