"""Several servers of one model: shares, rests and returns."""

import asyncio
import time

import httpx
import pytest
from chat_kit import BODY, Script, ask, client, reply
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.io.chat_client import ChatFault
from envace.io.chat_servers import ChatServer, choose


def by_host(**answers):
    """A script whose answer depends on the host that is asked."""

    async def answer(request):
        made = answers[request.url.host]
        return await made(request) if callable(made) else made

    return Script(answer)


def shares(script):
    hosts = [r.url.host for r in script.sent]
    return {h: hosts.count(h) for h in sorted(set(hosts))}


def after(seconds):
    async def answer(request):
        await asyncio.sleep(seconds)
        return reply()

    return answer


BOTH = {"http://a": 1.0, "http://b": 1.0}


def test_weights_share_the_work_of_equal_servers():
    script = by_host(a=after(0.01), b=after(0.01))
    ask(client(script, servers={"http://a": 3.0, "http://b": 1.0}, concurrency=8), n=80)
    assert 45 <= shares(script)["a"] <= 70


def test_a_slow_server_gets_less():
    script = by_host(a=after(0.3), b=after(0.005))
    ask(client(script, servers=BOTH, concurrency=4), n=60)
    assert shares(script)["a"] < 12


@pytest.mark.parametrize("status", [401, 500])
def test_a_failing_server_gets_little_and_costs_no_answer(status):
    script = by_host(a=httpx.Response(status), b=after(0.01))
    found = ask(client(script, servers=BOTH, concurrency=4, backoff_s=0.01), n=40)
    assert not any(isinstance(f, Exception) for f in found)
    assert shares(script)["b"] == 40 and shares(script)["a"] < 20


def test_when_every_server_is_dead_many_questions_end_after_their_own_attempts():
    script = by_host(a=httpx.Response(500), b=httpx.Response(500))
    found = ask(client(script, servers=BOTH, concurrency=2, attempts=3), n=50)
    assert {f.reason for f in found} == {"http_500"} and len(script.sent) == 150


def test_a_server_that_is_back_is_tried_by_one_request_and_then_serves():
    a, b = ChatServer("a"), ChatServer("b")
    down = ChatFault("http_500", blamed=True)
    for _ in range(8):
        a.failed(down, 0.01)
    assert a.rests == 1 and choose([a, b], []) is b
    time.sleep(0.02)
    assert choose([a, b], [b]) is a
    a.in_flight = 1
    assert choose([a, b], [b]) is b
    a.answered(0.1)
    assert choose([a, b], [b]) is a


@settings(max_examples=30)
@given(
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    concurrency=st.integers(1, 6),
    fates=st.lists(st.sampled_from(["good", "down", "lying", "cancelled"]), min_size=1, max_size=40),
)
def test_room_is_never_exceeded_and_always_given_back(weights, concurrency, fates):
    left = list(fates)

    async def answer(request):
        fate = left.pop()
        await asyncio.sleep(0)
        if fate == "cancelled":
            raise asyncio.CancelledError
        return {"good": reply(), "down": httpx.Response(500), "lying": httpx.Response(200)}[fate]

    script = Script(answer)
    servers = {f"http://h{i}": w for i, w in enumerate(weights)}
    made = client(script, servers=servers, concurrency=concurrency, attempts=1, backoff_s=1e-4)

    async def go():
        found = await asyncio.gather(*(made.ask(BODY) for _ in fates), return_exceptions=True)
        [open_] = made._open.values()
        return found, [server.in_flight for server in open_.clients]

    found, in_flight = asyncio.run(go())
    assert len(found) == len(fates) and not any(in_flight) and script.most <= concurrency
    assert made.bill.requests == len(fates)
