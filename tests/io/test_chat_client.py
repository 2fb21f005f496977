"""The chat client against servers that are good, busy, rude or lying, played by a transport."""

import asyncio
import logging
import time

import httpx
import pytest
from chat_kit import BODY, URL, Script, ask, client, reply

from envace.errors import EnvironmentUnready, ParamsError
from envace.io.addresses import base_address
from envace.io.chat_client import ChatFault
from envace.io.chat_reply import error_code, retry_after

CANARY = "canary-7b1f-never-to-be-seen"


def fault_of(made, body=BODY):
    with pytest.raises(ChatFault) as caught:
        ask(made, body)
    return caught.value


# --- requests


def test_a_request_is_ascii_json_with_model_extra_body_and_key_and_nothing_else_is_told(monkeypatch):
    monkeypatch.setenv("SOME_KEY", CANARY)
    monkeypatch.setenv("OPENAI_ORG_ID", "another")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer another\nX-More: another")
    script = Script(reply())
    got, bill = ask(client(script, key_env="SOME_KEY", extra_body={"chat_template_kwargs": {"x": 1}}))
    [sent] = script.sent
    assert got.text == "hi" and str(sent.url) == f"{URL}/chat/completions"
    assert script.bodies() == [{"model": "m", **BODY, "chat_template_kwargs": {"x": 1}}]
    assert sent.headers["authorization"] == f"Bearer {CANARY}" and "another" not in str(sent.headers)
    assert set(sent.headers) <= {
        "host",
        "accept",
        "accept-encoding",
        "connection",
        "user-agent",
        "content-type",
        "content-length",
        "authorization",
    }
    assert (bill.requests, bill.retries, bill.answered, bill.server) == (1, 0, 1, "model.test")


def test_without_a_key_no_key_is_sent_even_where_the_sdks_own_variable_is_set(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    script = Script(reply())
    ask(client(script))
    assert "authorization" not in script.sent[0].headers


def test_a_missing_key_names_its_variable_before_anything_is_asked(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(EnvironmentUnready, match=f"{URL} needs a key.*NO_SUCH_KEY"):
        client(Script(reply()), key_env="NO_SUCH_KEY")


@pytest.mark.parametrize("value", [f"{CANARY}\nX-More: 1", f"{CANARY}\x01", f"{CANARY}é"])
def test_a_key_no_header_can_hold_is_refused_without_being_shown(value, monkeypatch):
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(EnvironmentUnready) as caught:
        client(Script(reply()), key_env="SOME_KEY")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(401, text=f"the key {CANARY} is wrong"),
        httpx.Response(500, text=CANARY, headers={"X-Key": CANARY}),
        httpx.Response(307, headers={"Location": f"http://{CANARY}@other.test/"}),
        httpx.Response(429, headers={"Retry-After": CANARY}),
        httpx.Response(200, text=CANARY),
        httpx.ConnectError(CANARY),
        reply(content=CANARY),
    ],
)
def test_the_key_is_in_no_fault_reply_log_or_repr(answer, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SOME_KEY", CANARY)
    script = Script(answer)
    made = client(script, key_env="SOME_KEY", attempts=1)
    [got] = ask(made, n=1)
    told = repr(got) + repr(getattr(got, "said", "")) + repr(vars(made)) + repr(made.options) + caplog.text
    seen = capfd.readouterr()
    assert CANARY not in told + seen.out + seen.err and len(script.sent) == 1


def test_a_login_in_the_address_is_sent_and_shown_to_nobody():
    script = Script(reply())
    _, bill = ask(client(script, servers={"http://user:s3cret@h:1": 1.0}))
    assert script.sent[0].headers["authorization"].startswith("Basic ")
    assert str(script.sent[0].url) == "http://h:1/v1/chat/completions" and bill.server == "h:1"


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/v1", "https://h/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("http://h/api/v4", "http://h/api/v4"),
        ("http://h/v1/chat/completions", "http://h/v1"),
    ],
)
def test_an_address_may_or_may_not_end_in_v1(given, base):
    assert base_address(given) == base


@pytest.mark.parametrize(
    "url", ["", "localhost:1", "ftp://me:s3cret@x", "http://", "http://[", "http://x:99999"]
)
def test_an_address_that_cannot_be_one_is_refused_without_showing_a_password(url):
    with pytest.raises(ParamsError, match="the judge's address .* must be such as http") as caught:
        base_address(url, "the judge's address")
    assert "s3cret" not in str(caught.value)


# --- faults and attempts


@pytest.mark.parametrize(
    ("answer", "reason", "requests"),
    [
        (httpx.ConnectError("refused"), "unreachable", 3),
        (httpx.ReadTimeout("slow"), "timeout", 3),
        (httpx.Response(500, text="boom"), "http_500", 3),
        (httpx.Response(429), "http_429", 3),
        (httpx.Response(404, text="no model m"), "http_404", 1),
        (httpx.Response(307, headers={"Location": "http://other.test"}), "http_307", 1),
        (httpx.Response(200, text="<html>"), "malformed", 3),
        (httpx.Response(200, json={"choices": []}), "malformed", 3),
        (httpx.Response(200, json={"choices": [{"message": 3}]}), "malformed", 3),
        (httpx.Response(200, json={"error": {"message": "x", "code": 503}}), "http_503", 3),
        (httpx.Response(200, json={"error": {"message": "x", "code": "bad"}}), "malformed", 3),
        (httpx.Response(200, content=b"{}", headers={"Content-Encoding": "br"}), "unreachable", 3),
        (reply(None, refusal="I would rather not"), "refused_by_model", 1),
        (reply(finish="content_filter"), "refused_by_model", 1),
    ],
)
def test_faults_have_names_and_are_asked_again_where_that_may_help(answer, reason, requests):
    script = Script(answer)
    made = client(script, attempts=3)
    fault = fault_of(made)
    assert fault.reason == reason and len(script.sent) == requests
    assert made.bill.faults == {reason: requests} and made.bill.retries == requests - 1


def test_a_status_keeps_its_code_and_what_was_said():
    answer = httpx.Response(402, json={"error": {"code": "insufficient_quota", "message": "pay first"}})
    fault = fault_of(client(Script(answer)))
    assert (fault.status, fault.code, fault.detail) == (402, "insufficient_quota", "HTTP 402")
    assert "pay first" in fault.said and "pay first" not in str(fault)
    assert [error_code(t) for t in ("", "[]", '{"error": {"code": "Has Spaces", "type": "x_y_z"}}')] == [
        "",
        "",
        "x_y_z",
    ]


def test_an_answer_after_faults_leaves_them_on_the_bill():
    script = Script(httpx.Response(503), httpx.ConnectError("x"), reply(usage={"total_tokens": 5}))
    got, bill = ask(client(script))
    assert got.tokens == bill.tokens == 5
    assert (bill.requests, bill.retries, bill.faults) == (3, 2, {"http_503": 1, "unreachable": 1})


def test_an_attempt_ends_at_its_deadline_however_slowly_the_server_sends():
    async def drip():
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    async def dripping(request):
        return httpx.Response(200, content=drip())

    began = time.monotonic()
    assert fault_of(client(Script(dripping), timeout_s=0.1, attempts=1)).detail == "0.1 s"
    assert time.monotonic() - began < 2


def test_an_answer_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("envace.io.chat_connection.LARGEST_ANSWER", 1000)
    assert fault_of(client(Script(reply("x" * 2000)), attempts=1)).reason == "too_large"


def test_retry_after_is_heeded_by_every_question():
    script = Script(httpx.Response(429, headers={"Retry-After": "0.3"}), reply())
    made = client(script, concurrency=1)
    assert len(ask(made, n=3)) == 3
    assert script.times[1] - script.times[0] >= 0.3 and len(script.sent) == 4


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("nan", 0.0), ("inf", 120.0), ("1e9", 120.0), ("soon", 0.0)]
    + [(None, 0.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("Fri, 01 Jan 2999 00:00:00 GMT", 120.0)],
)
def test_retry_after_in_seconds_or_as_a_date_and_never_for_ever(value, seconds):
    assert retry_after(value, 120.0) == seconds


def test_a_pause_may_end_the_question():
    class Stopped(Exception):
        pass

    async def sleep(seconds):
        raise Stopped

    script = Script(httpx.Response(500))
    with pytest.raises(Stopped):
        ask(client(script, sleep=sleep))
    assert len(script.sent) == 1


def test_a_reply_the_caller_has_no_use_for_is_asked_again_without_a_pause_and_paid_for():
    asked = iter("abc")

    def check(got):
        if got.text != "good":
            raise ChatFault("no_answer")

    script = Script(reply("bad", {"total_tokens": 1}), reply("good", {"total_tokens": 2}))
    got, bill = ask(client(script, backoff_s=60.0), lambda: {"messages": next(asked)}, check)
    assert got.text == "good" and [b["messages"] for b in script.bodies()] == ["a", "b"]
    assert (bill.tokens, bill.faults) == (3, {"no_answer": 1})


def test_requests_in_flight_stay_below_the_limit_over_all_servers():
    async def slow(request):
        await asyncio.sleep(0.01)
        return reply()

    script = Script(slow)
    ask(client(script, servers={"http://a": 1.0, "http://b": 1.0}, concurrency=3), n=20)
    assert script.most == 3 and len(script.sent) == 20


def test_a_refusal_may_be_a_reply():
    got, _ = ask(client(Script(reply(None, refusal="no")), refusal_fails=False))
    assert (got.text, got.refused) == ("", True)


def test_one_client_serves_several_event_loops():
    made = client(Script(reply()))
    assert [ask(made)[0].text for _ in range(2)] == ["hi", "hi"]


# --- what servers do not take


def test_a_server_without_schemas_is_asked_plainly_from_then_on():
    async def strict(request):
        return httpx.Response(400, text="no such field") if b"response_format" in request.content else reply()

    script = Script(strict)
    made = client(script, concurrency=1)
    ask(made, {**BODY, "response_format": {}}, n=2)
    assert ["response_format" in b for b in script.bodies()] == [True, False, False]


def test_a_request_refused_either_way_keeps_its_schema_the_next_time():
    script = Script(httpx.Response(400), httpx.Response(400), reply())
    made = client(script, concurrency=1)
    first, second = ask(made, {**BODY, "response_format": {}}, n=2)
    assert first.reason == "http_400" and second.text == "hi"
    assert ["response_format" in b for b in script.bodies()] == [True, False, True]


def test_a_server_that_wants_the_newer_name_of_the_limit_gets_it():
    script = Script(httpx.Response(400, text="use 'max_completion_tokens' instead"), reply())
    ask(client(script))
    assert script.bodies()[1]["max_completion_tokens"] == 9 and "max_tokens" not in script.bodies()[1]


def test_a_prompt_that_leaves_room_for_a_shorter_answer_is_asked_for_one():
    script = Script(httpx.Response(400, text="too long"), reply())
    ask(client(script, shorter=lambda said, asked: asked - 4 if said == "too long" else 0))
    assert [b["max_tokens"] for b in script.bodies()] == [9, 5]
