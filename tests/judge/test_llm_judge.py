"""The LLM judge against a real server on loopback: no bug of it becomes a score or leaks a key."""

import json
import logging
import socket
import subprocess
import sys

import pytest
from chat_server_kit import completion, dead_url, raw_server, says, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_kit import FINE, ITEMS, MESSAGES, answers, judge_once, judge_turns, params

from envace.errors import EnvironmentUnready, ParamsError
from envace.judge import make_judge, turn_reward
from envace.judge.llm import LLMJudge
from envace.judge.llm_requests import read_step, read_turn, turn_request
from envace.types import Answer, to_json

CANARY = "canary-7b1f-never-to-be-seen"


def test_a_good_judge_gives_verdicts_in_order_in_one_call_with_its_cost():
    with serving(says({"C1": {"why": "x", "answer": False}, "C0": {"why": "y", "answer": True}})) as server:
        found = judge_once(params(server.url))
    assert [v.answer for v in found] == [Answer.YES, Answer.NO]
    assert len(server.bodies) == 1
    assert sum(v.cost_tokens for v in found) == 101 and all(v.seconds > 0 for v in found)
    assert turn_reward(ITEMS, found).reward == 0.5


def test_the_transcript_comes_before_the_items_and_cannot_close_its_fence():
    body = turn_request(params("http://x"), ITEMS, 0, MESSAGES)
    user = body["messages"][1]["content"]
    assert user.index("#kite") < user.index("question 0") < user.index("question 1")
    assert user.count("</transcript>") == 1 and "\\u003c/transcript>" in user
    assert "\ud800" not in user
    assert body["temperature"] == 0.6 and body["max_tokens"] == 6000


# --- what is an answer


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        ("yes", [True, "true", "True", "yes", {"answer": "TRUE"}]),  # bug 22: a quoted true is true
        ("no", [False, "false", " NO ", {"answer": "false"}]),  # bug 20: the word false is no
        # bug 21: INCORRECT does not contain CORRECT
        (
            "unscored",
            [1, 0, None, "", "INCORRECT", "CORRECT", "untrue", "true or false", "not true", [True], {}],
        ),
        ("unscored", [{"verdict": True}, {"answer": {"answer": True}}]),
    ],
)
def test_only_booleans_and_their_exact_words_are_answers(expected, values):
    for value in values:
        found, reasons = answers(says({"C0": value, "C1": True}), attempts=1)
        assert found == [expected, "yes"], value
        assert reasons[0].startswith("judge_malformed") == (expected == "unscored") and reasons[1] == ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(0, 1) | st.text(max_size=8),
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


@pytest.mark.parametrize(
    "text",
    [
        "Both items are true.",
        "true",
        "INCORRECT",
        "[true, true]",
        '{"C0": true, "C0": false, "C1": true}',
        'Sure! {"C0": true, "C1": true}',
        '{"C0": true, "C1": true',
        "[" * 100_000,
        "",
        None,
    ],
    ids=["prose", "bare", "negative", "list", "both", "chatty", "cut", "deep", "empty", "null"],
)
def test_a_reply_that_is_not_one_json_object_scores_nothing(text):
    found, reasons = answers(says(text), attempts=1)
    assert found == ["unscored", "unscored"]
    assert all(r.startswith("judge_malformed") for r in reasons)


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"C0": true, "C1": false}\n```',
        '<think>{"C0": false}</think>\n{"C0": true, "C1": false}',
        '{"C0": {"why": "it wrote </think> too early", "answer": true}, "C1": false}',
        '<think>see</think>\n```json\n{"C0": {"why": "</think> twice", "answer": true}, "C1": "no"}\n```',
        '{"C0": {"why": "it began with ```json and stopped ```", "answer": true}, "C1": false}',
    ],
    ids=["fence", "thinking", "quoted tag", "all of them", "quoted fence"],
)
def test_a_fence_and_thoughts_are_set_aside_and_quoted_ones_are_text(text):
    assert answers(says(text))[0] == ["yes", "no"]


def test_bug_15_a_judge_that_says_nan_gives_no_number():
    body = completion('{"C0": NaN, "C1": {"answer": Infinity}}', usage={"total_tokens": float("nan")})
    with serving(lambda n: (200, body, 0.0)) as server:
        found = judge_once(params(server.url, attempts=1))
    assert {v.answer.value for v in found} == {"unscored"} and turn_reward(ITEMS, found).reward is None
    assert all(v.cost_tokens == 0 for v in found)


def test_only_open_items_are_asked_again_and_answers_once_given_stay():
    replies = [{"C0": True, "C1": "perhaps"}, {"C0": False, "C1": False}]
    with serving(lambda n: (200, completion(replies[n - 1]), 0.0)) as server:
        found = judge_once(params(server.url))
    assert [v.answer.value for v in found] == ["yes", "no"]
    assert "question 0" not in server.asked(1) and "question 1" in server.asked(1)
    assert server.asked(0).partition("<items")[0] == server.asked(1).partition("<items")[0]


def test_a_malformed_reply_is_asked_again_and_every_attempt_is_paid():
    with serving(lambda n: (200, completion("hm" if n == 1 else {"C0": True, "C1": True}), 0.0)) as server:
        found = judge_once(params(server.url))
    assert [v.answer for v in found] == [Answer.YES, Answer.YES]
    assert len(server.bodies) == 2 and sum(v.cost_tokens for v in found) == 202


# --- faults


@pytest.mark.parametrize(
    ("answer", "reason", "requests"),
    [
        (lambda n: (500, "boom", 0.0), "judge_unreachable: HTTP 500", 2),
        (lambda n: (429, "", 0.0), "judge_unreachable: HTTP 429", 2),
        (lambda n: (200, completion(FINE), 1.0), "judge_timeout: 0.3 s", 2),
        (lambda n: (401, "key sk-123 is wrong", 0.0), "judge_refused: HTTP 401", 1),
        (lambda n: (307, "", 0.0, {"Location": "http://127.0.0.1:9"}), "judge_refused: HTTP 307", 1),
        (says(None, message={"refusal": "I would rather not"}), "judge_refused: by the model", 1),
        (says(FINE, finish_reason="content_filter"), "judge_refused: by the model", 1),
        (lambda n: (200, "<html>", 0.0), "judge_malformed: not a chat completion", 2),
        (lambda n: (200, '{"choices": []}', 0.0), "judge_malformed: not a chat completion", 2),
        (says("prose"), "judge_malformed: not JSON", 2),
        (says({"C0": "maybe"}), "judge_malformed: no true or false for C0", 2),
    ],
)
def test_bug_14_a_fault_has_a_name_and_leaves_the_turn_without_a_reward_not_with_zero(
    answer, reason, requests
):
    with serving(answer) as server:
        found = judge_once(params(server.url, timeout_s=0.3 if "timeout" in reason else 5.0))
    assert found[0].reason == reason and len(server.bodies) == requests
    assert {v.answer for v in found} == {Answer.UNSCORED} and turn_reward(ITEMS, found).reward is None
    assert "sk-123" not in repr(found)


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


def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(monkeypatch):
    with serving(says(FINE)) as proxy, serving(says(FINE)) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        judge_once(params("http://judge.invalid:9"))
        judge_once(params(server.url))
    assert [h["host"] for h in proxy.headers] == ["judge.invalid:9"] and len(server.bodies) == 1


def test_connections_nobody_closed_leave_no_word_behind():
    code = (
        "import asyncio, sys; sys.path[:0] = ['tests', 'tests/judge']\n"
        "import judge_kit as k, chat_server_kit as c\n"
        "with c.serving(c.says(k.FINE)) as s:\n"
        "    j = k.LLMJudge(k.params(s.url))\n"
        "    loop = asyncio.new_event_loop()\n"
        "    for run in (asyncio.run, asyncio.run, loop.run_until_complete):\n"
        "        run(j.judge_turn(k.TASK, 0, k.MESSAGES))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- keys and servers


def test_the_key_comes_from_the_environment_and_stays_out_of_sight(monkeypatch):
    with pytest.raises(EnvironmentUnready, match="JUDGE_KEY_FOR_TEST"):
        LLMJudge(params("http://x", key_env="JUDGE_KEY_FOR_TEST"))
    monkeypatch.setenv("JUDGE_KEY_FOR_TEST", "very-secret")
    with serving(says({"C0": True, "C1": True})) as server:
        p = params(server.url, key_env="JUDGE_KEY_FOR_TEST")
        found = judge_once(p)
    assert server.headers[0]["authorization"] == "Bearer very-secret"
    assert "very-secret" not in repr(found) + repr(vars(make_judge(p)))


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


def test_several_servers_share_the_work_and_a_dead_one_costs_no_verdict():
    with serving(says(FINE)) as good:
        judge, turns = judge_turns(params(dead_url(), good.url, concurrency=4), 20)
    assert all(v.answer is not Answer.UNSCORED for verdicts in turns for v in verdicts)
    assert len(good.bodies) == 20 and judge.bill.faults["unreachable"] == judge.bill.requests - 20


def test_base_url_and_endpoints_together_are_the_servers():
    judge = LLMJudge(params("http://a:1/v1", endpoints={"http://b:2": 3, "http://a:1": 2.0}))
    assert judge.client.addresses == {"http://a:1/v1": 2.0, "http://b:2/v1": 3.0}
    assert LLMJudge(params("", endpoints={"http://b": 1})).client.addresses == {"http://b/v1": 1}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"endpoints": {"http://b:2": 0}}, "must be a weight above 0"),
        ({"endpoints": {"b": 1}}, "must be such as http"),
        ({"base_url": "localhost:1"}, "the judge's address .* must be such as http"),
        ({"base_url": ""}, "must be such as http"),
    ],
)
def test_servers_that_cannot_be_used_are_named(keys, message):
    with pytest.raises(ParamsError, match=message):
        LLMJudge(params("http://a:1/v1", **keys))
