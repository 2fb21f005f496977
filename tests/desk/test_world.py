"""The desk's tools: hand-computed answers, refusals, and no crash on odd arguments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.desk.tasks import generate
from envace.desk.world import TOOLS, World
from envace.errors import DataError
from envace.types import Record, Source, ToolCall

DB = {
    "orders": {
        "#kite": {"status": "pending", "total": 40, "city": "oslo"},
        "#dune": {"status": "delivered", "total": 95, "city": "rome"},
        "#iris": {"status": "delivered", "total": 80, "city": "lima"},
    },
    "accounts": {"#wolf": {"order": "#kite", "credit": 15}},
}


def ask(world, name, **arguments):
    return world.call(ToolCall(name=name, arguments=arguments))


def test_lookups_show_the_row():
    world = World(DB)
    assert ask(world, "get_order", order_id="#kite").content == {
        "order_id": "#kite",
        "status": "pending",
        "total": 40,
        "city": "oslo",
    }
    answer = ask(world, "get_account", account_id="#wolf")
    assert answer.content == {"account_id": "#wolf", "order": "#kite", "credit": 15}
    assert answer.source is Source.ENVIRONMENT and not answer.error


def test_changes_are_seen_by_later_calls_and_never_by_another_world():
    world = World(DB)
    assert ask(world, "change_address", order_id="#kite", city="lima").content == {
        "order_id": "#kite",
        "city": "lima",
    }
    assert ask(world, "cancel_order", order_id="#kite").content == {
        "order_id": "#kite",
        "status": "cancelled",
    }
    assert ask(world, "refund_order", order_id="#iris").content == {"order_id": "#iris", "refund": 80}
    assert world.state()["orders"]["#kite"] == {"status": "cancelled", "total": 40, "city": "lima"}
    assert World(DB).state() == DB


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("get_order", {"order_id": "kite"}, "bad id"),
        ("get_order", {"order_id": "#Kite 2"}, "bad id"),
        ("get_order", {"order_id": "#zebra"}, "order not found"),
        ("get_account", {"account_id": "#kite"}, "account not found"),
        ("cancel_order", {"order_id": "#dune"}, "order is not pending"),
        ("refund_order", {"order_id": "#kite"}, "order is not delivered"),
        ("refund_order", {"order_id": "#dune"}, "total is over 80"),
        ("change_address", {"order_id": "#kite", "city": "mars"}, "no delivery there"),
        ("change_address", {"order_id": "#kite"}, "bad arguments"),
        ("get_order", {"order_id": "#kite", "extra": "x"}, "bad arguments"),
        ("get_order", {"order_id": 7}, "bad arguments"),
        ("drop_table", {}, "unknown tool"),
    ],
)
def test_refusals_name_the_rule_and_change_nothing(name, arguments, error):
    world = World(DB)
    answer = ask(world, name, **arguments)
    assert answer.content == {"error": error} and answer.error
    assert world.state() == DB


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.sampled_from([t["function"]["name"] for t in TOOLS] + ["", "__init__", "state"]), json_values)
def test_no_argument_raises(name, arguments):
    answer = World(DB).call(ToolCall(name=name, arguments=arguments))
    assert isinstance(answer.content, dict)


def test_at_least_five_tools_each_with_a_full_schema():
    assert len(TOOLS) >= 5
    for tool in TOOLS:
        parameters = tool["function"]["parameters"]
        assert (
            set(parameters["required"]) == set(parameters["properties"]) and tool["function"]["description"]
        )


def test_records_rebuild_the_initial_world():
    for task in generate(3, "train", 50):
        assert World.from_records(task.records).state() == World.from_task(task).state()


def test_broken_databases_are_refused():
    with pytest.raises(DataError, match="orders"):
        World({"accounts": {}})
    with pytest.raises(DataError, match="total"):
        World({"orders": {"#kite": {"status": "pending", "city": "oslo"}}, "accounts": {}})
    bad = Record(
        turn=0, call=ToolCall(name="get_order", arguments={}), result={"order_id": "#kite", "status": 1}
    )
    with pytest.raises(DataError):
        World.from_records([bad])
