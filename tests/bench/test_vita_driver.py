"""What goes over the wire to a model, and what is remembered of an attempt. No harness environment needed."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
import requests
from kit_drivers import driver_of
from kit_server import Server, said

driver = driver_of("vita")


def wire(server: Server, tmp_path, key: str = "VITA_AGENT_KEY", **body) -> tuple[driver.Wire, driver.State]:
    state = driver.State(tmp_path / "attempts.jsonl")
    role = {"url": server.url + "/chat/completions", "model": "real", "key": key, "body": body}
    job = {"roles": {"agent": role, "judge": role}, "seed": 5, "send_seed": True}
    return driver.Wire(requests, job, state), state


def upstream_body() -> dict:
    """As VitaBench builds it: its own configuration of the model, headers included, poured into the body."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x", "tool_calls": None}]
    stray = {"name": "agent/real", "base_url": "agent", "headers": {}, "max_input_tokens": 9, "tools": None}
    return {"model": "agent/real", "messages": messages, "stream": False} | stray


def attempted(state: driver.State, act, task: str = "t1"):
    run = state.watched(lambda **_: act())
    return run(task=SimpleNamespace(id=task))


def test_the_body_holds_neither_key_nor_address(tmp_path, monkeypatch):
    monkeypatch.setenv("VITA_AGENT_KEY", "canary-key")
    with Server(lambda body: said("ok"), "real") as server:
        w, state = wire(server, tmp_path, chat_template_kwargs={"enable_thinking": False})
        attempted(state, lambda: w.post("agent", json=upstream_body(), headers={}, timeout=(5, 5)))
        headers, raw = server.seen[0]
        body = json.loads(raw)
        assert headers["Authorization"] == "Bearer canary-key"
        assert b"canary" not in raw and server.url.encode() not in raw
        assert sorted(body) == ["chat_template_kwargs", "messages", "model", "seed", "stream"]
        assert body["model"] == "real" and "tool_calls" not in body["messages"][1]


def test_each_request_has_another_seed_and_each_run_the_same(tmp_path, monkeypatch):
    def seeds(folder):
        folder.mkdir()
        with Server(lambda body: said("ok"), "real") as server:
            w, state = wire(server, folder)
            post = lambda: [w.post("agent", json=upstream_body()) for _ in range(3)]  # noqa: E731
            attempted(state, post)
            return [json.loads(raw)["seed"] for _, raw in server.seen]

    first, second = seeds(tmp_path / "a"), seeds(tmp_path / "b")
    assert first == second and len(set(first)) == 3


def test_the_judge_is_sent_no_seed(tmp_path):
    with Server(lambda body: said("ok"), "real") as server:
        w, state = wire(server, tmp_path)
        attempted(state, lambda: w.post("judge", json=upstream_body() | {"base_url": "judge"}))
        assert "seed" not in json.loads(server.seen[0][1])


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (said("hello"), ""),
        (said(""), "empty_message"),
        (said(None), "empty_message"),
        (said(calls=[("f", '{"a": 1}')]), ""),
        (said(calls=[("f", "")]), ""),
        (said(calls=[("f", '{"a": ')]), "malformed_call"),
        (said(calls=[("f", "[1]")]), "malformed_call"),
        ((200, {"error": "no"}), "no_chat_completion"),
        ((400, {"error": {"message": "maximum context length is 4096"}}), "context_overflow"),
        ((400, {"error": {"message": "temperature must be positive"}}), "http_400"),
        ((401, {"error": "no"}), "http_401"),
    ],
)
def test_what_is_wrong_with_an_answer_has_a_name(tmp_path, reply, problem):
    with Server(lambda body: reply, "real") as server:
        w, state = wire(server, tmp_path)
        attempted(state, lambda: w.post("agent", json=upstream_body()))
    assert json.loads((tmp_path / "attempts.jsonl").read_text())["problem"] == problem


def test_a_judge_cut_at_its_token_limit_is_remembered(tmp_path):
    status, reply = said("[")
    reply["choices"][0]["finish_reason"] = "length"
    with Server(lambda body: (status, reply), "real") as server:
        w, state = wire(server, tmp_path)
        attempted(
            state, lambda: [w.post(r, json=upstream_body() | {"base_url": r}) for r in ("judge", "agent")]
        )
    assert json.loads((tmp_path / "attempts.jsonl").read_text())["judge_cut"] == 1


def test_a_busy_server_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "BUSY_PAUSE_S", 0.01)
    replies = iter([(429, {}), (503, {}), said("ok")])
    with Server(lambda body: next(replies), "real") as server:
        w, state = wire(server, tmp_path)
        answer = attempted(state, lambda: w.post("agent", json=upstream_body()))
    assert answer.status_code == 200 and len(server.seen) == 3


def test_a_dead_server_is_recorded_and_raised_as_upstream_expects(tmp_path):
    with Server(lambda body: (0, None), "real") as server:
        w, state = wire(server, tmp_path)
        with pytest.raises(requests.exceptions.RequestException):
            attempted(state, lambda: w.post("agent", json=upstream_body()))
    line = json.loads((tmp_path / "attempts.jsonl").read_text())
    assert (line["role"], line["problem"], line["ok"]) == ("agent", "unreachable", False)


def test_attempts_in_parallel_threads_do_not_mix(tmp_path):
    state, gate = driver.State(tmp_path / "attempts.jsonl"), threading.Barrier(4)

    def act(role):
        gate.wait(30)
        state.event(role, "empty_message", role)
        gate.wait(30)

    threads = [
        threading.Thread(target=attempted, args=(state, lambda r=r: act(r), r))
        for r in ("agent", "b", "c", "d")
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    lines = [json.loads(x) for x in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    assert {(x["task"], x["role"], x["detail"]) for x in lines} == {
        (r, r, r) for r in ("agent", "b", "c", "d")
    }


def test_a_redirect_is_not_followed_with_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("VITA_AGENT_KEY", "canary-key")
    with Server(lambda body: (307, {}), "real") as server:
        w, state = wire(server, tmp_path)
        assert attempted(state, lambda: w.post("agent", json=upstream_body())).status_code == 307
        assert len(server.seen) == 1


def test_an_unfinished_results_file_is_taken_up_and_a_broken_one_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(driver.sys, "stdin", None)
    results, attempts = tmp_path / "results.json", tmp_path / "attempts.jsonl"
    driver.resume(results, attempts)
    assert driver.sys.stdin is None
    results.write_text('{"simulations": []}')
    driver.resume(results, attempts)
    assert driver.sys.stdin.read() == "y\n" and results.exists()
    results.write_text('{"simulations": [')
    driver.resume(results, attempts)
    assert not results.exists() and (tmp_path / "results.broken.json").exists()


def test_a_dialogue_that_its_judge_failed_is_played_again_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(driver.sys, "stdin", None)
    results, attempts = tmp_path / "results.json", tmp_path / "attempts.jsonl"
    results.write_text(json.dumps({"info": 1, "simulations": [{"task_id": t} for t in ("1", "2", "3")]}))
    attempts.write_text("".join(json.dumps({"task": t, "judge_cut": 1}) + "\n" for t in "1234"))
    (tmp_path / "again.json").write_text('[["delivery/2", 1], ["delivery/4", 1]]')  # 4 was never kept
    driver.resume(results, attempts)
    assert json.loads(results.read_text()) == {"info": 1, "simulations": [{"task_id": "1"}, {"task_id": "3"}]}
    assert [json.loads(line)["task"] for line in attempts.read_text().splitlines()] == ["1", "3", "4"]
    assert not (tmp_path / "again.json").exists() and driver.sys.stdin.read() == "y\n"
