"""Agreement of two responses, by hand."""

import pytest

from envace.bench.fidelity.measure import grounded, grounded_share, occurs
from envace.chat.transcript import key_paths, shape


def test_key_paths_and_their_f1():
    assert key_paths({"a": [{"b": 1}, {"c": 2}], "d": 3}) == {
        ("a",),
        ("a", "[]", "b"),
        ("a", "[]", "c"),
        ("d",),
    }
    assert shape({"a": 1, "b": 2}, {"a": 9, "c": 1}) == 0.5
    assert shape([], []) == 1.0 and shape({"a": 1}, []) == 0.0


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("kite", 'look {"item": "kite"}', True),
        ("kite", 'look {"item": "kites"}', False),
        ("item", 'look {"item": "kite"}', False),  # a key is no value
        ("item", 'look {"item" : "kite"}', False),
        ("kite", 'say "the \\"kite\\" is here"', False),
        (4, '{"left": 4}', True),
        (4, '{"left": 40}', False),
        (4, '{"left": 4.5}', False),
        (4, '{"left": -4}', False),
        (4, '{"left": "4"}', False),
        (True, '{"ok": true}', True),
        (None, '{"ok": null}', True),
        ("é", '{"a": "\\u00e9"}', True),
        ("a<b", '{"a": "a\\u003cb"}', True),
    ],
)
def test_a_value_occurs_only_as_a_json_value_of_its_own(value, text, found):
    assert occurs(value, text) is found


def test_only_leaves_that_were_shown_count_as_grounded():
    truth = {"item": "kite", "left": 3, "city": "oslo"}
    shown = 'look {"item": "kite"} -> {"left": 3}'
    assert grounded_share(truth, shown) == pytest.approx(2 / 3)  # oslo was never shown
    assert grounded({"item": "kite", "left": 9, "city": "oslo"}, truth, shown) == 0.5
    assert grounded({"error": "no"}, truth, shown) == 0.0
    assert grounded({"left": "kite", "item": 3}, truth, shown) == 0.0  # the path counts too
    assert grounded({}, {"error": "not here"}, shown) is None and grounded_share([], shown) == 0.0


def test_repeated_leaves_of_a_list_count_as_often_as_they_stand():
    truth, shown = {"ids": ["a", "a", "b"]}, '["a", "b"]'
    assert grounded({"ids": ["a", "b"]}, truth, shown) == pytest.approx(2 / 3)
