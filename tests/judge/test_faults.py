"""Public bugs of judges and servers that break the protocol: none of them becomes a score or leaks a key."""

import json
import logging
import socket
import subprocess
import sys
import time

import pytest
from chat_server_kit import completion, raw_server, says, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_kit import FINE, ITEMS, answers, judge_once, judge_turns, params

from envace.judge import turn_reward
from envace.judge.llm_answers import read_step, read_turn
from envace.types import Answer, to_json

CANARY = "canary-7b1f-never-to-be-seen"


@pytest.mark.parametrize("rude", [lambda n: (500, "", 0.0), says("prose"), says({"C0": "maybe"})])
def test_bug_14_a_judge_that_fails_leaves_the_turn_without_a_reward_not_with_zero(rude):
    with serving(rude) as server:
        found = judge_once(params(server.url))
    assert turn_reward(ITEMS, found).reward is None


def test_bug_15_a_judge_that_says_nan_gives_no_number():
    body = completion('{"C0": NaN, "C1": {"answer": Infinity}}', usage={"total_tokens": float("nan")})
    with serving(lambda n: (200, body, 0.0)) as server:
        found = judge_once(params(server.url, attempts=1))
    assert {v.answer.value for v in found} == {"unscored"} and turn_reward(ITEMS, found).reward is None
    assert all(v.cost_tokens == 0 for v in found)


def test_bug_19_a_judge_that_never_ends_its_reply_is_left_at_the_deadline():
    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.05)

    began = time.monotonic()
    with raw_server(drip) as url:
        found = judge_once(params(url, timeout_s=0.3, attempts=1))
    assert {v.reason for v in found} == {"judge_timeout: 0.3 s"}
    assert time.monotonic() - began < 3


def test_bug_20_the_word_false_is_no_and_a_missing_key_is_unscored():
    assert answers(says({"C0": {"answer": "false"}, "C1": {}}), attempts=1)[0] == ["no", "unscored"]
    assert answers(says({}), attempts=1)[0] == ["unscored", "unscored"]


def test_bug_21_incorrect_does_not_contain_correct():
    replies = {"C0": "INCORRECT", "C1": "untrue"}
    assert answers(says(replies), attempts=1)[0] == ["unscored", "unscored"]
    assert answers(says("INCORRECT"), attempts=1)[0] == ["unscored", "unscored"]


def test_bug_22_a_quoted_true_is_true():
    assert answers(says({"C0": "True", "C1": {"answer": "TRUE"}}))[0] == ["yes", "yes"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    ],
    ids=["closed", "half a head", "half a body", "bad chunk", "not http", "not gzip"],
)
def test_a_half_closed_connection_is_unreachable(sent):
    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

    with raw_server(behave) as url:
        found = judge_once(params(url, timeout_s=2.0))
    assert {v.reason.partition(":")[0] for v in found} == {"judge_unreachable"}


def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY_FOR_TEST", CANARY)
    with serving(says(FINE)) as other:
        with serving(lambda n: (307, "", 0.0, {"Location": other.url})) as server:
            found = judge_once(params(server.url, key_env="JUDGE_KEY_FOR_TEST"))
    assert {v.reason for v in found} == {"judge_refused: HTTP 307"} and other.bodies == []


def test_a_proxy_of_the_environment_is_used_and_spared_hosts_are_not(monkeypatch):
    with serving(says(FINE)) as proxy, serving(says(FINE)) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        judge_once(params("http://judge.invalid:9"))
        judge_once(params(server.url))
    assert [h["host"] for h in proxy.headers] == ["judge.invalid:9"] and len(server.bodies) == 1


def test_connections_nobody_closed_leave_no_word_behind():
    code = (
        "import asyncio, sys; sys.path[:0] = ['tests', 'tests/judge']; import judge_kit as k, chat_server_kit as c\n"
        "with c.serving(c.says(k.FINE)) as s:\n"
        "    j = k.LLMJudge(k.params(s.url))\n"
        "    loop = asyncio.new_event_loop()\n"
        "    for run in (asyncio.run, asyncio.run, loop.run_until_complete):\n"
        "        run(j.judge_turn(k.TASK, 0, k.MESSAGES))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_only_open_items_are_asked_again_and_answers_once_given_stay():
    replies = [{"C0": True, "C1": "perhaps"}, {"C0": False, "C1": False}]
    with serving(lambda n: (200, completion(replies[n - 1]), 0.0)) as server:
        found = judge_once(params(server.url))
    assert [v.answer.value for v in found] == ["yes", "no"]
    assert "question 0" not in server.asked(1) and "question 1" in server.asked(1)
    assert server.asked(0).partition("<items")[0] == server.asked(1).partition("<items")[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: (401, f"the key {CANARY} is wrong", 0.0),
        lambda: (500, CANARY, 0.0, {"X-Key": CANARY}),
        lambda: (200, completion({"C0": CANARY, "C1": {"answer": CANARY, "why": CANARY}}), 0.0),
        lambda: (200, completion({"C0": {"why": CANARY, "answer": True}, "C1": False}), 0.0),
        lambda: (200, CANARY, 0.0),
        lambda: (307, "", 0.0, {"Location": f"http://{CANARY}@localhost/"}),
        lambda: (429, "", 0.0, {"Retry-After": CANARY}),
    ],
)
def test_the_key_is_in_no_verdict_file_log_or_record_of_the_judge(make, monkeypatch, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("JUDGE_KEY_FOR_TEST", CANARY)
    with serving(lambda n: make()) as server:
        key = {"key_env": "JUDGE_KEY_FOR_TEST"}
        judge, turns = judge_turns(
            params(server.url, **key, attempts=1, cache=str(tmp_path / "kept"), audit=1.0)
        )
    assert server.headers[0]["authorization"] == f"Bearer {CANARY}"
    files = b"".join(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    told = (
        repr(turns)
        + json.dumps([to_json(v) for v in turns[0]])
        + repr(vars(judge))
        + repr(judge.client.options)
    )
    seen = capfd.readouterr()
    assert CANARY not in told + caplog.text + seen.out + seen.err and CANARY.encode() not in files


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_yes_and_no_come_from_booleans_and_their_four_words_alone(value):
    inner = value.get("answer") if isinstance(value, dict) else value
    words = {"true": Answer.YES, "yes": Answer.YES, "false": Answer.NO, "no": Answer.NO}
    expected = Answer.UNSCORED
    if isinstance(inner, bool):
        expected = Answer.YES if inner else Answer.NO
    elif isinstance(inner, str):
        expected = words.get(inner.strip().lower(), Answer.UNSCORED)
    assert read_turn(json.dumps({"C0": value}), ITEMS[:1]).get("C0", Answer.UNSCORED) is expected
    if isinstance(value, dict):
        assert read_step(json.dumps(value), ITEMS[:1]).get("C0", Answer.UNSCORED) is expected
