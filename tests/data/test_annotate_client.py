"""One call against a real server on loopback that is slow, busy, broken, choosy or gone."""

import asyncio
import json
import socket
import time

import pytest
from annotate_kit import GOOD, Says, options, serving

from envace.data.annotate.client import AnnotateClient, Stopped
from envace.data.annotate.options import AnnotateOptions
from envace.data.annotate.questions import VERDICT, Question
from envace.data.annotate.source import AnnotateSource
from envace.errors import EnvironmentUnready, ParamsError

ASK = Question(
    messages=(
        {"role": "system", "content": "no_error"},
        {"role": "user", "content": '<dialogue turns="1">port-1'},
    ),
    schema=VERDICT,
    effort="low",
)


def ask(url, question=ASK, n=1, stop_after=None, **changes):
    """The answers to n calls one after the other."""

    async def go():
        stop = asyncio.Event()
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, stop.set)
        async with AnnotateClient(
            options(AnnotateSource(), ".", url, **changes), stop, backoff_s=0.01
        ) as client:
            return [await client.ask(question) for _ in range(n)]

    return asyncio.run(go())


def test_a_request_asks_for_the_schema_with_the_effort_and_a_limit():
    with serving() as mill:
        [answer] = ask(mill.url, max_tokens=77, temperature=0.5)
    body = mill.log[0].body
    assert body["response_format"]["json_schema"] == VERDICT and body["reasoning_effort"] == "low"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 77, 0.5)
    assert (answer.reply.tokens_in, answer.reply.tokens_out, answer.requests) == (1000, 100, 1)


def test_what_is_not_asked_for_is_not_sent():
    with serving() as mill:
        ask(mill.url, Question(messages=ASK.messages, schema=VERDICT, effort="none"), plain=True)
    assert set(mill.log[0].body) == {"model", "messages", "max_tokens"}


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503])
def test_busy_and_broken_servers_are_asked_again(status):
    with serving(lambda a: Says(GOOD, status=status if a.n < 3 else 200)) as mill:
        [answer] = ask(mill.url)
    assert answer.requests == 3 and answer.fault == "" and answer.reply.text == json.dumps(GOOD)


def test_a_cut_connection_is_tried_again_and_named_when_it_stays_cut():
    with serving(lambda a: Says(hang_up=True) if a.n < 2 else Says(GOOD)) as mill:
        [answer] = ask(mill.url)
        assert answer.requests == 2 and answer.reply
    with serving(lambda a: Says(hang_up=True)) as mill:
        [answer] = ask(mill.url)
    assert (answer.fault, answer.requests, answer.reply) == ("unreachable", 3, None)


def test_a_slow_server_is_dropped_at_the_deadline():
    started = time.monotonic()
    with serving(lambda a: Says(GOOD, delay_s=0.6)) as mill:
        [answer] = ask(mill.url, timeout_s=0.2, attempts=2)
    assert answer.fault == "timeout" and answer.requests == 2 and time.monotonic() - started < 3


def test_an_endless_reply_is_dropped():
    with serving(lambda a: Says(raw=b"x" * 17_000_000)) as mill:
        [answer] = ask(mill.url)
    assert answer.fault == "too_large" and answer.reply is None


def test_the_wait_a_server_asks_for_holds_for_every_call():
    with serving(lambda a: Says(GOOD, status=429 if a.n == 1 else 200, headers={"Retry-After": "1"})) as mill:
        ask(mill.url, n=2)
    assert mill.log[1].at - mill.log[0].at >= 0.95


def test_a_run_told_to_stop_does_not_wait_out_a_busy_server():
    started = time.monotonic()
    with serving(lambda a: Says(status=429, headers={"Retry-After": "60"})) as mill, pytest.raises(Stopped):
        ask(mill.url, stop_after=0.3)
    assert time.monotonic() - started < 5


def refuses(field, word):
    """A server that takes no request with this field."""

    def script(asked):
        if field in asked.body:
            error = {"message": f"unknown parameter: {word}", "type": "invalid_request_error"}
            return Says(status=400, raw=json.dumps({"error": error}).encode())
        return Says(GOOD)

    return script


def test_a_server_without_structured_output_is_asked_plainly_from_then_on():
    with serving(refuses("response_format", "response_format")) as mill:
        answers = ask(mill.url, n=3)
    assert [a.requests for a in answers] == [2, 1, 1] and [a.structured for a in answers] == [False] * 3
    assert all(a.reply.text == json.dumps(GOOD) for a in answers)


def test_a_server_that_names_its_limit_otherwise_keeps_structured_output():
    with serving(refuses("max_tokens", "use max_completion_tokens")) as mill:
        answers = ask(mill.url, n=2)
    assert [a.requests for a in answers] == [2, 1]
    assert mill.log[-1].body["max_completion_tokens"] and "response_format" in mill.log[-1].body


def test_a_server_without_reasoning_effort_is_told_of_once_with_the_way_out():
    with serving(refuses("reasoning_effort", "reasoning_effort")) as mill:
        with pytest.raises(EnvironmentUnready, match="--passes none,none"):
            ask(mill.url)


def test_a_text_the_server_refuses_is_final_and_changes_nothing_for_the_next():
    long = b'{"error": {"message": "too long", "code": "context_length_exceeded"}}'
    with serving(lambda a: Says(status=400, raw=long) if a.n < 3 else Says(GOOD)) as mill:
        first, second = ask(mill.url, n=2)
    assert first.fault == "refused_400_context_length_exceeded" and first.reply is None
    assert second.structured and second.requests == 1
    with serving(lambda a: Says(raw=b'{"choices": [{"message": {"refusal": "no"}}]}')) as mill:
        assert ask(mill.url)[0].fault == "refused_by_model"


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
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}/v1"
    with pytest.raises(EnvironmentUnready, match="8 calls in a row .* goes on where this stopped"):
        ask(url, n=20, attempts=1)


def test_a_missing_or_mangled_key_is_named_by_its_variable(monkeypatch):
    with pytest.raises(EnvironmentUnready, match="ANNOTATE_KEY"):
        ask("http://127.0.0.1:1", key_env="ANNOTATE_KEY")
    monkeypatch.setenv("ANNOTATE_KEY", "abc\ndef")
    with pytest.raises(EnvironmentUnready) as e:
        ask("http://127.0.0.1:1", key_env="ANNOTATE_KEY")
    assert "abc" not in str(e.value)


def test_an_address_that_is_none_or_carries_a_key_is_refused():
    for wrong in ("h:8000", "ftp://h", "http://", "http://u:p@h", "http://h/v1?key=1", "http://h:99999"):
        with pytest.raises(ParamsError):
            options(AnnotateSource(), ".", wrong)


@pytest.mark.parametrize(
    "changes", [{"passes": ("low", "extreme")}, {"model": " "}, {"budget_usd": 1.0}, {"label_effort": ""}]
)
def test_options_that_cannot_work_are_refused_at_once(changes):
    with pytest.raises(ParamsError):
        AnnotateOptions(**{"source": ".", "out": ".", "base_url": "http://h", "model": "m", **changes})


def test_a_pass_keeps_its_name_when_others_come_or_go():
    names = options(AnnotateSource(), ".", "http://h", passes=("low", "low", "high")).pass_names
    assert names == ("filter:low:0", "filter:low:1", "filter:high:0")
