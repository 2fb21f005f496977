"""Anchors that an MCP server answers: who is asked, when, and that the connection is let go.

The session is a table, so no SDK is needed; the real one is in test_mcp_server.
"""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace as Block

import pytest
from rollout_kit import PARAMS, RENDERER, TASK, TableJudge, arm_params, call, play, two_roles

from envace.config import McpParams
from envace.config.method import Method
from envace.errors import ParamsError
from envace.rollout import mcp_source
from envace.rollout.mcp_session import Refused
from envace.rollout.mcp_source import McpSource
from envace.rollout.prompts import load_prompt_set
from envace.rollout.rehearsal import RehearsalSource
from envace.rollout.sources import RecordedSource, make_source
from envace.types import Role, Source, StopReason, replace

SERVED = replace(PARAMS, mcp=McpParams(url="http://shop.test/mcp"), max_calls=9)
ACTS = [call("get", f"#{k}") for k in (1, 2, 3, 4)] + ["it is new", "dropped"]


@pytest.fixture
def sessions(monkeypatch):
    """Sessions of a server that counts the calls it has had; `#3` is refused and `#die` breaks the
    connection."""
    made = []

    class Session:
        where = "MCP server http://shop.test/mcp"

        def __init__(self, params):
            self.tools, self.asked, self.closed = frozenset({"get", "drop"}), [], False
            made.append(self)

        async def open(self):
            pass

        async def call(self, call):
            self.asked.append(call.arguments["id"])
            if call.arguments["id"] == "#3":
                raise Refused("no such id")
            if call.arguments["id"] == "#die":
                raise OSError("reset")
            return Block(content=[], structured_content={"n": len(self.asked)}, is_error=False)

        async def aclose(self):
            self.closed = True

    monkeypatch.setattr(mcp_source, "McpSession", Session)
    monkeypatch.setattr(mcp_source, "sdk", lambda: None)
    return made


def anchored(acts=ACTS, task=TASK, params=SERVED, **switches):
    method = Method(anchor_every=2, **switches)
    policy = two_roles(acts)
    source = make_source(task, method, policy, RENDERER, params)
    return play(policy, source=source, task=task, method=method, params=params, judge=TableJudge())


def test_every_second_call_is_the_servers_and_its_connection_is_closed(sessions):
    e = anchored()
    rehearsed, true = Source.REHEARSAL, Source.ENVIRONMENT
    assert [o.source for o in e.observations] == [rehearsed, true, rehearsed, true]
    assert [o.content.get("n") for o in e.observations] == [
        None,
        1,
        None,
        2,
    ]  # it has seen the anchored calls alone
    [session] = sessions
    assert session.asked == ["#2", "#4"] == [c.arguments["id"] for c in e.real_calls] and session.closed
    assert (e.stop, e.counters["anchor/asked"], e.counters["rehearse"]) == (StopReason.DONE, 2, 2)


def test_a_bonus_holds_rehearsals_against_the_server(sessions):
    e = anchored(["".join(call("get", f"#{k}") + "\n" for k in (1, 2)), *ACTS[4:]], anchor_mode="bonus")
    assert [o.source for o in e.observations] == [Source.REHEARSAL] * 2
    agreed = [g.agreement for g in e.generations if g.role is Role.REHEARSE]
    assert agreed == [None, 0.0] and sessions[0].asked == ["#2"]  # {"of": ..} and {"n": 1} share no key


def test_an_episode_that_never_reaches_an_anchor_opens_no_connection(sessions):
    e = anchored([call("get", "#1"), *ACTS[4:]])
    assert (e.stop, sessions) == (StopReason.DONE, [])


def test_records_answer_where_no_server_is_named(sessions):
    policy, method = two_roles(ACTS), Method(anchor_every=2)
    assert isinstance(make_source(TASK, method, policy, RENDERER, PARAMS).truth, RecordedSource)
    assert isinstance(make_source(TASK, method, policy, RENDERER, SERVED).truth, McpSource)


def test_what_was_cut_off_prompts_is_counted_beside_anchors(sessions):
    """An anchored source takes over the counts of the one that rehearses."""
    policy, method = two_roles(ACTS), Method(anchor_every=2)
    source = make_source(TASK, method, policy, RENDERER, SERVED)
    source.source.counters["cut/history"] += 3
    source.counters["anchor/asked"] += 1
    assert dict(source.counters) == {"cut/history": 3, "anchor/asked": 1}


def test_both_sources_are_closed_when_one_of_them_breaks(sessions):
    closed = []

    class Broken(RehearsalSource):
        async def aclose(self):
            closed.append("rehearsal")
            raise OSError("gone")

    class Truth:
        async def aclose(self):
            closed.append("truth")

    from envace.rollout.anchor import AnchoredSource

    method = Method(anchor_every=2)
    inner = Broken(two_roles(ACTS), RENDERER, load_prompt_set("compact"), method, PARAMS)
    with pytest.raises(OSError, match="gone"):
        asyncio.run(AnchoredSource(inner, Truth(), method).aclose())
    assert sorted(closed) == ["rehearsal", "truth"]


@pytest.mark.parametrize(
    ("switches", "refused"), [({"anchor_every": 2}, True), ({}, False), ({"source": "recorded"}, False)]
)
def test_an_address_that_cannot_be_asked_is_refused_where_anchors_need_it(switches, refused):
    with pytest.raises(ParamsError, match="must begin with http") if refused else nullcontext():
        arm_params("a", switches, mcp={"url": "shop.test"})
