"""Several endpoints: shares, back-pressure, rests and returns; on real servers where they matter."""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_kit import FINE, completion, dead_url, judge_turns, options, params, says, serving

from envace.errors import ParamsError
from envace.judge.endpoints import Endpoints, Patience
from envace.judge.options import read_options, shown
from envace.judge.verdicts import JudgeFault
from envace.types import Answer, replace

DOWN = JudgeFault("judge_unreachable", "HTTP 500", blamed=True)


def scored(turns: list) -> bool:
    return all(v.answer is not Answer.UNSCORED for verdicts in turns for v in verdicts)


def test_weights_share_the_work_of_equal_servers():
    # both busy all the time at 0.02 s: three times the weight bears three times as many requests in flight
    with serving(says(FINE, 0.02)) as heavy, serving(says(FINE, 0.02)) as light:
        o = options(heavy.url, light.url, concurrency=8)
        o = replace(o, endpoints=tuple((url, w) for (url, _), w in zip(o.endpoints, (3.0, 1.0), strict=True)))
        _, turns = judge_turns(o, 80)
    assert scored(turns) and 45 <= len(heavy.bodies) <= 70


def test_a_slow_endpoint_gets_less():
    with serving(says(FINE, 0.3)) as slow, serving(says(FINE)) as fast:
        _, turns = judge_turns(options(slow.url, fast.url, concurrency=4), 60)
    assert scored(turns) and len(slow.bodies) < 12


def test_a_failing_endpoint_gets_little_and_costs_no_verdict():
    with serving(lambda n: (500, "", 0.0)) as bad, serving(says(FINE, 0.01)) as good:
        judge, turns = judge_turns(options(bad.url, good.url, concurrency=4), 40)
    assert scored(turns) and len(good.bodies) == 40 and len(bad.bodies) < 20
    assert judge.bill.requests == 40 + len(bad.bodies)


def test_a_dead_endpoint_is_tried_again_and_serves_once_it_is_back():
    with serving(lambda n: (503, "", 0.0) if n <= 2 else (200, completion(FINE), 0.0)) as back:
        with serving(says(FINE, 0.03)) as good:
            _, turns = judge_turns(options(back.url, good.url, concurrency=2), 40)
    assert scored(turns) and len(back.bodies) > 10


def test_one_dead_address_among_two_costs_no_verdict():
    with serving(says(FINE)) as good:
        _, turns = judge_turns(options(dead_url(), good.url, concurrency=4), 20)
    assert scored(turns) and len(good.bodies) == 20


def test_an_endpoint_that_refuses_our_key_leaves_the_work_to_the_others():
    with serving(lambda n: (401, "", 0.0)) as closed, serving(says(FINE)) as good:
        _, turns = judge_turns(options(closed.url, good.url, concurrency=4), 20)
    assert scored(turns) and len(good.bodies) == 20


def test_retry_after_is_obeyed():
    def answer(n):
        return (429, "", 0.0, {"Retry-After": "1"}) if n == 1 else (200, completion(FINE), 0.0)

    with serving(answer) as server:
        _, turns = judge_turns(params(server.url))
    assert scored(turns) and 0.95 <= server.times[1] - server.times[0] < 3


def test_when_every_endpoint_is_dead_many_calls_end_after_their_own_attempts():
    began = time.monotonic()
    with serving(lambda n: (500, "", 0.0)) as a, serving(lambda n: (500, "", 0.0)) as b:
        _, turns = judge_turns(options(a.url, b.url, concurrency=2, attempts=3), 50)
    assert {v.reason for verdicts in turns for v in verdicts} == {"judge_unreachable: HTTP 500"}
    assert time.monotonic() - began < 10


def test_calls_in_flight_stay_below_the_limit_over_all_endpoints():
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(says(FINE, 0.02))) for _ in range(3)]
        _, turns = judge_turns(options(*(s.url for s in servers), concurrency=3), 30)
    assert scored(turns) and all(s.most_in_flight <= 3 for s in servers)


def test_faults_of_one_moment_are_one_fault_and_halve_the_room_once():
    async def go():
        pool = Endpoints([("u", 1.0)], 8, 10.0)
        began = time.monotonic()
        taken = [await pool.acquire(Patience(1)) for _ in range(8)]
        for e in taken:
            pool.done(e, began, DOWN)
        return pool.all[0]

    e = asyncio.run(go())
    assert (e.rests, e.limit, e.in_flight, e.failed) == (1, 4.0, 0, 8)


def test_the_odd_failed_request_stops_nobody_else():
    with serving(lambda n: (500, "", 0.0) if n % 9 == 0 else (200, completion(FINE), 0.0)) as server:
        began = time.monotonic()
        judge, turns = judge_turns(params(server.url, concurrency=4, attempts=4), 100)
    assert scored(turns) and judge.client.endpoints.all[0].rests == 0
    assert 100 < len(server.bodies) <= 115 and time.monotonic() - began < 20


def test_a_cancelled_waiter_passes_its_turn_on():
    async def go():
        pool = Endpoints([("u", 1.0)], 1, 0.01)
        first = await pool.acquire(Patience(1))
        waiting = [asyncio.create_task(pool.acquire(Patience(1))) for _ in range(2)]
        await asyncio.sleep(0)
        pool.done(first, time.monotonic())
        waiting[0].cancel()
        return await asyncio.wait_for(waiting[1], 1)

    assert asyncio.run(go()).in_flight == 1


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    concurrency=st.integers(1, 6),
    fates=st.lists(st.sampled_from(["good", "blamed", "lying", "cancelled"]), min_size=1, max_size=40),
)
def test_room_is_never_exceeded_and_always_given_back(weights, concurrency, fates):
    seen = Counter()

    async def one(pool: Endpoints, fate: str) -> None:
        try:
            e = await pool.acquire(Patience(3))
        except JudgeFault:
            seen["out of patience"] += 1
            return
        began = time.monotonic()
        assert sum(x.in_flight for x in pool.all) <= concurrency
        await asyncio.sleep(0)
        if fate == "cancelled":
            pool.give_up(e)
        else:
            pool.done(e, began, {"good": None, "blamed": DOWN, "lying": JudgeFault("judge_malformed")}[fate])
        seen[fate] += 1

    async def go():
        pool = Endpoints([(str(i), w) for i, w in enumerate(weights)], concurrency, 1e-4)
        await asyncio.wait_for(asyncio.gather(*(one(pool, f) for f in fates)), 20)
        return pool

    pool = asyncio.run(go())
    assert all(e.in_flight == 0 and 1 <= e.limit <= concurrency for e in pool.all)
    assert seen.total() == len(fates)


@pytest.mark.parametrize("url", ["", "localhost:1", "ftp://x", "http://", "http://[", "http://x:99999"])
def test_an_address_that_cannot_be_one_is_refused_before_the_run(url):
    with pytest.raises(ParamsError, match="must be such as http"):
        read_options(params(url))


def test_a_password_in_an_address_is_not_shown():
    assert shown("http://me:secret@h:1/v1?key=secret") == "http://h:1/v1"
    with pytest.raises(ParamsError) as e:
        read_options(params("ftp://me:secret@h/v1"))
    assert "secret" not in str(e.value)
