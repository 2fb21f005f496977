"""The LLM judge against a real HTTP server on loopback that is good, slow, down, rude or lying."""

import time

import pytest
from chat_server_kit import completion, dead_url, says, serving
from judge_kit import FINE, ITEMS, MESSAGES, answers, judge_once, judge_turns, params

from envace.errors import EnvironmentUnready, ParamsError
from envace.judge import make_judge, turn_reward
from envace.judge.llm import LLMJudge
from envace.judge.llm_requests import turn_request
from envace.types import Answer


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


@pytest.mark.parametrize(
    "value, expected",
    [
        (True, "yes"),
        (False, "no"),
        ("true", "yes"),
        ("True", "yes"),
        ("false", "no"),
        (" NO ", "no"),
        ("yes", "yes"),
        ({"answer": "false"}, "no"),
        (1, "unscored"),
        (0, "unscored"),
        (None, "unscored"),
        ("", "unscored"),
        ("INCORRECT", "unscored"),
        ("CORRECT", "unscored"),
        ("true or false", "unscored"),
        ("not true", "unscored"),
        ([True], "unscored"),
        ({}, "unscored"),
        ({"verdict": True}, "unscored"),
        ({"answer": {"answer": True}}, "unscored"),
    ],
)
def test_only_booleans_and_their_exact_words_are_answers(value, expected):
    found, reasons = answers(says({"C0": value, "C1": True}), attempts=1)
    assert found == [expected, "yes"]
    assert reasons[0].startswith("judge_malformed") == (expected == "unscored") and reasons[1] == ""


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
    ['```json\n{"C0": true, "C1": false}\n```', '<think>{"C0": false}</think>\n{"C0": true, "C1": false}'],
    ids=["fence", "thinking"],
)
def test_a_code_fence_and_thinking_are_set_aside(text):
    assert answers(says(text))[0] == ["yes", "no"]


def test_a_missing_item_alone_is_unscored():
    assert answers(says({"C1": False}), attempts=1)[0] == ["unscored", "no"]


def test_a_malformed_reply_is_asked_again_and_every_attempt_is_paid():
    with serving(lambda n: (200, completion("hm" if n == 1 else {"C0": True, "C1": True}), 0.0)) as server:
        found = judge_once(params(server.url))
    assert [v.answer for v in found] == [Answer.YES, Answer.YES]
    assert len(server.bodies) == 2 and sum(v.cost_tokens for v in found) == 202


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_failing_server_is_tried_again(status):
    fine = completion({"C0": True, "C1": False})
    assert answers(lambda n: (status, "", 0.0) if n == 1 else (200, fine, 0.0))[0] == ["yes", "no"]


def test_a_server_that_keeps_failing_leaves_items_unscored_by_name():
    with serving(lambda n: (500, "boom", 0.0)) as server:
        found = judge_once(params(server.url, attempts=3))
    assert {v.reason for v in found} == {"judge_unreachable: HTTP 500"} and len(server.bodies) == 3
    assert turn_reward(ITEMS, found).reward is None


def test_a_slow_judge_ends_at_its_deadline():
    began = time.monotonic()
    found, reasons = answers(lambda n: (200, completion({"C0": True, "C1": True}), 1.0), timeout_s=0.1)
    assert found == ["unscored", "unscored"] and reasons[0].startswith("judge_timeout")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: (401, "key sk-123 is wrong", 0.0),
        says(None, message={"refusal": "I would rather not"}),
        says({"C0": True, "C1": True}, finish_reason="content_filter"),
    ],
    ids=["status", "refusal", "filter"],
)
def test_a_refusal_is_named_and_not_tried_again(answer):
    with serving(answer) as server:
        found = judge_once(params(server.url))
    assert {v.reason.partition(":")[0] for v in found} == {"judge_refused"} and len(server.bodies) == 1
    assert "sk-123" not in repr(found)


@pytest.mark.parametrize(
    "body", ["<html>", "[]", "{}", '{"choices": []}', '{"choices": [{"message": 3}]}', "\xff"]
)
def test_a_server_that_does_not_speak_the_protocol_is_malformed(body):
    found, reasons = answers(lambda n: (200, body, 0.0), attempts=1)
    assert found == ["unscored", "unscored"] and reasons[0].startswith("judge_malformed")


def test_the_key_comes_from_the_environment_and_stays_out_of_sight(monkeypatch):
    with pytest.raises(EnvironmentUnready, match="JUDGE_KEY_FOR_TEST"):
        LLMJudge(params("http://x", key_env="JUDGE_KEY_FOR_TEST"))
    monkeypatch.setenv("JUDGE_KEY_FOR_TEST", "very-secret")
    with serving(says({"C0": True, "C1": True})) as server:
        p = params(server.url, key_env="JUDGE_KEY_FOR_TEST")
        found = judge_once(p)
    assert server.headers[0]["authorization"] == "Bearer very-secret"
    assert "very-secret" not in repr(found) + repr(vars(make_judge(p)))


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
        ({"endpoints": {"http://b:2": True}}, "must be a weight above 0"),
        ({"endpoints": {"b": 1}}, "must be such as http"),
        ({"base_url": "localhost:1"}, "the judge's address .* must be such as http"),
        ({"base_url": ""}, "must be such as http"),
    ],
)
def test_servers_that_cannot_be_used_are_named(keys, message):
    with pytest.raises(ParamsError, match=message):
        LLMJudge(params("http://a:1/v1", **keys))
