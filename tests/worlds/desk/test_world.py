"""The desk's tools: hand-computed answers, refusals, and no crash on odd arguments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.errors import DataError
from envace.types import Record, Source, ToolCall
from envace.worlds.desk.tasks import generate
from envace.worlds.desk.tools import SPECS, TOOLS, WRITES
from envace.worlds.desk.world import FORBIDDEN, NEW_STATE, DeskWorld

DB = {
    "orders": {
        "#kite": {"status": "pending", "total": 40, "city": "oslo"},
        "#dune": {"status": "delivered", "total": 95, "city": "rome"},
        "#iris": {"status": "delivered", "total": 80, "city": "lima"},
    },
    "accounts": {
        "#wolf": {"state": "locked", "credit": 15, "order": "#kite", "booking": "#ruby"},
        "#bear": {"state": "open", "credit": 5, "order": "#dune", "booking": "#opal"},
        "#lynx": {"state": "open", "credit": 0, "order": "#dune", "booking": "#opal"},
    },
    "bookings": {
        "#ruby": {"status": "held", "day": "mon", "seats": 2},
        "#opal": {"status": "confirmed", "day": "tue", "seats": 4},
    },
}


def ask(world, name, **arguments):
    return world.call(ToolCall(name=name, arguments=arguments))


def test_lookups_show_the_row():
    world = DeskWorld(DB)
    assert ask(world, "get_order", order_id="#kite").content == {
        "order_id": "#kite",
        "status": "pending",
        "total": 40,
        "city": "oslo",
    }
    answer = ask(world, "get_account", account_id="#wolf")
    assert answer.content == {"account_id": "#wolf", **DB["accounts"]["#wolf"]}
    assert answer.source is Source.ENVIRONMENT and not answer.error


@pytest.mark.parametrize(
    ("name", "arguments", "told", "row"),
    [
        (
            "cancel_order",
            {"order_id": "#kite"},
            {"status": "cancelled", "refund": 40},
            {"status": "cancelled"},
        ),
        ("refund_order", {"order_id": "#iris"}, {"status": "refunded", "refund": 80}, {"status": "refunded"}),
        ("change_address", {"order_id": "#kite", "city": "lima"}, {"city": "lima"}, {"city": "lima"}),
        ("unlock_account", {"account_id": "#wolf"}, {"state": "open"}, {"state": "open"}),
        ("close_account", {"account_id": "#lynx"}, {"state": "closed"}, {"state": "closed"}),
        ("confirm_booking", {"booking_id": "#ruby"}, {"status": "confirmed"}, {"status": "confirmed"}),
        ("cancel_booking", {"booking_id": "#opal"}, {"status": "cancelled"}, {"status": "cancelled"}),
        ("move_booking", {"booking_id": "#opal", "day": "fri"}, {"day": "fri"}, {"day": "fri"}),
        ("set_seats", {"booking_id": "#opal", "seats": 6}, {"seats": 6}, {"seats": 6}),
    ],
)
def test_a_change_is_told_and_seen_by_later_calls_and_never_by_another_world(name, arguments, told, row):
    world, spec = DeskWorld(DB), SPECS[name]
    key = arguments[spec.key]
    assert ask(world, name, **arguments).content == {spec.key: key, **told}
    assert world.state()[spec.table][key] == {**DB[spec.table][key], **row}
    assert DeskWorld(DB).state() == DB


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
        ("get_booking", {"booking_id": "#topaz"}, "booking not found"),
        ("unlock_account", {"account_id": "#bear"}, "account is not locked"),
        ("close_account", {"account_id": "#wolf"}, "account is not open"),
        ("close_account", {"account_id": "#bear"}, "credit is left"),
        ("confirm_booking", {"booking_id": "#opal"}, "booking is not held"),
        ("move_booking", {"booking_id": "#ruby", "day": "fri"}, "booking is not confirmed"),
        ("move_booking", {"booking_id": "#opal", "day": "sun"}, "closed that day"),
        ("move_booking", {"booking_id": "#opal", "day": "someday"}, "bad arguments"),
        ("set_seats", {"booking_id": "#opal", "seats": 7}, "too many seats"),
        ("set_seats", {"booking_id": "#opal", "seats": 0}, "bad arguments"),
        ("set_seats", {"booking_id": "#opal", "seats": True}, "bad arguments"),
        ("get_order", {"order_id": "#kite", "extra": "x"}, "bad arguments"),
        ("get_order", {"order_id": 7}, "bad arguments"),
        ("drop_table", {}, "unknown tool"),
    ],
)
def test_refusals_name_the_rule_and_change_nothing(name, arguments, error):
    world = DeskWorld(DB)
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
    answer = DeskWorld(DB).call(ToolCall(name=name, arguments=arguments))
    assert isinstance(answer.content, dict)


def test_twelve_tools_over_three_kinds_each_with_a_full_schema():
    assert len(TOOLS) == 12 and {s.kind for s in SPECS.values()} == {"order", "account", "booking"}
    assert set(NEW_STATE) | set(FORBIDDEN) == set(WRITES)
    for tool in TOOLS:
        parameters = tool["function"]["parameters"]
        assert (
            set(parameters["required"]) == set(parameters["properties"]) and tool["function"]["description"]
        )


def test_records_rebuild_the_initial_world():
    for task in generate(3, "train", 50):
        assert DeskWorld.from_records(task.records).state() == DeskWorld.from_task(task).state()


def test_broken_databases_are_refused():
    with pytest.raises(DataError, match="orders"):
        DeskWorld({"accounts": {}})
    with pytest.raises(DataError, match="total"):
        DeskWorld(
            {"orders": {"#kite": {"status": "pending", "city": "oslo"}}, "accounts": {}, "bookings": {}}
        )
    bad = Record(
        turn=0, call=ToolCall(name="get_order", arguments={}), result={"order_id": "#kite", "status": 1}
    )
    with pytest.raises(DataError):
        DeskWorld.from_records([bad])
