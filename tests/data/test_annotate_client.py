"""One call against a real server on loopback that is slow, busy, broken, choosy or gone."""

import asyncio
import json
from pathlib import Path

import pytest
from annotate_kit import GOOD, Says, options, serving
from chat_server_kit import dead_url

from envace.data.annotate.client import AnnotateClient, Stopped
from envace.data.annotate.questions import VERDICT, Question
from envace.errors import EnvironmentUnready, ParamsError

TALK = ({"role": "system", "content": "no_error"}, {"role": "user", "content": '<dialogue turns="1">port-1'})
ASK = Question(messages=TALK, schema=VERDICT, effort="low")


def ask(url, question=ASK, n=1, stop_after=None, **changes):
    """The answers to n calls one after the other."""

    async def go():
        stop = asyncio.Event()
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, stop.set)
        async with AnnotateClient(options(None, Path(), url, **changes), stop, backoff_s=0.01) as client:
            return [await client.ask(question) for _ in range(n)]

    return asyncio.run(go())


def test_a_request_asks_for_the_schema_with_the_effort_and_a_limit_and_nothing_else():
    with serving() as mill:
        [answer] = ask(mill.url, max_tokens=77, temperature=0.5)
        ask(mill.url, Question(messages=TALK, schema=VERDICT, effort="none"), plain=True)
    body = mill.log[0].body
    assert body["response_format"]["json_schema"] == VERDICT and body["reasoning_effort"] == "low"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 77, 0.5)
    assert (answer["read"], answer["written"], answer["requests"]) == (1000, 100, 1)
    assert set(mill.log[1].body) == {"model", "messages", "max_tokens"}


@pytest.mark.parametrize(
    ("says", "fault", "requests"),
    [
        (Says(GOOD, status=503), "http_503", 3),
        (Says(hang_up=True), "unreachable", 3),
        (Says(GOOD, delay_s=0.6), "timeout", 3),
        (Says(raw=b"[]"), "no_completion", 3),
        (Says(raw=b'{"choices": [{"message": {"refusal": "no"}}]}'), "refused_by_model", 1),
        (Says(None, finish="content_filter"), "refused_by_model", 1),
        (Says(raw=b'{"error": {"message": "upstream is at its limit", "code": 429}}'), "http_429", 3),
    ],
)
def test_a_call_without_a_reply_has_a_named_fault(says, fault, requests):
    with serving(lambda a: says) as mill:
        [answer] = ask(mill.url, timeout=0.2)
    assert (answer["fault"], answer["requests"], answer["reply"]) == (fault, requests, None)


def test_a_reply_in_parts_is_one_text():
    parts = [{"type": "text", "text": '{"errors": [], '}, {"type": "text", "text": '"no_error": true}'}]
    choice = {"message": {"content": parts}, "finish_reason": "stop"}
    with serving(lambda a: Says(raw=json.dumps({"choices": [choice]}).encode())) as mill:
        assert ask(mill.url)[0]["reply"] == '{"errors": [], "no_error": true}'


def test_a_run_told_to_stop_does_not_wait_out_a_busy_server():
    with serving(lambda a: Says(status=429, headers={"Retry-After": "60"})) as mill, pytest.raises(Stopped):
        ask(mill.url, stop_after=0.3)


def refuses(field, word):
    """A server that takes no request with this field."""

    def script(asked):
        if field in asked.body:
            error = {"message": f"unknown parameter: {word}", "type": "invalid_request_error"}
            return Says(status=400, raw=json.dumps({"error": error}).encode())
        return Says(GOOD)

    return script


@pytest.mark.parametrize(
    ("field", "word", "structured"),
    [("response_format", "response_format", False), ("max_tokens", "use max_completion_tokens", True)],
)
def test_what_a_server_refuses_is_put_otherwise_from_then_on(field, word, structured):
    with serving(refuses(field, word)) as mill:
        answers = ask(mill.url, n=3)
    assert [a["requests"] for a in answers] == [2, 1, 1]
    assert all(a["reply"] == json.dumps(GOOD) and a["structured"] is structured for a in answers)
    assert ("response_format" in mill.log[-1].body) is structured


def test_a_server_without_reasoning_effort_is_told_of_once_with_the_way_out():
    with serving(refuses("reasoning_effort", "reasoning_effort")) as mill:
        with pytest.raises(EnvironmentUnready, match="--passes none,none"):
            ask(mill.url)


def test_a_text_the_server_refuses_is_final_and_changes_nothing_for_the_next():
    long = b'{"error": {"message": "too long", "code": "context_length_exceeded"}}'
    with serving(lambda a: Says(status=400, raw=long) if a.n < 3 else Says(GOOD)) as mill:
        first, second = ask(mill.url, n=2)
    assert first["fault"] == "refused_400_context_length_exceeded" and first["reply"] is None
    assert second["structured"] and second["requests"] == 1


@pytest.mark.parametrize(
    ("status", "text", "says"),
    [
        (401, b"", "takes no calls with this key"),
        (402, b"", "wants to be paid"),
        (403, b"", "does not allow"),
        (404, b"", "check --base-url and --model"),
        (429, b'{"error": {"code": "insufficient_quota"}}', "wants to be paid"),
    ],
)
def test_what_no_further_call_can_mend_ends_the_run(status, text, says):
    with serving(lambda a: Says(status=status, raw=text)) as mill:
        with pytest.raises(EnvironmentUnready, match=says):
            ask(mill.url)
    assert len(mill.log) == 1


def test_a_server_that_is_gone_ends_the_run_after_a_few_calls():
    with pytest.raises(EnvironmentUnready, match="8 calls in a row .* goes on where this stopped"):
        ask(dead_url(), n=20, attempts=1)


@pytest.mark.parametrize(
    "changes",
    [
        *({"base_url": url} for url in ("h:80", "ftp://h", "http://", "http://u:p@h", "http://h/v1?key=1")),
        {"passes": "low,extreme"},
        {"model": " "},
        {"budget": 1.0},
        {"label_effort": ""},
        {"price_in": 1.0},
    ],
)
def test_options_that_cannot_work_are_refused_at_once(changes):
    with pytest.raises(ParamsError):
        options(None, Path(), **({"url": changes["base_url"]} if "base_url" in changes else changes))


def test_a_pass_keeps_its_name_when_others_come_or_go():
    names = options(None, Path(), passes="low, low,high").pass_names
    assert names == ("filter:low:0", "filter:low:1", "filter:high:0")
