"""Predictors that need no model: hand-made calls with known predictions."""

from shelf_kit import call, shelf_task

from envace.bench.fidelity.measure import predicted
from envace.bench.fidelity.pairs import Pair
from envace.bench.fidelity.predictors import NOTHING, Others, constant, copy, majority
from envace.types import Record, replace

NO = {"error": "not here"}


def pair(k, truth, tool="look", item="kite", records=None, turn=0):
    task = shelf_task(k)
    if records is not None:
        task = replace(task, records=tuple(records))
    return Pair(
        task=task,
        turn=turn,
        index=0,
        history=task.prefix,
        call=call(tool, item),
        truth=truth,
        kind="reference",
    )


def test_the_constant_is_the_most_frequent_response_of_other_tasks():
    pairs = [pair(0, {"left": 1}), pair(0, {"left": 1}), pair(1, {"left": 2}), pair(2, NO)]
    others = Others(pairs)
    assert constant(pairs[0], others) == NO  # 1 : 1, first in the alphabet; its own task's two do not count
    assert constant(pairs[2], others) == {"left": 1}
    assert constant(pair(3, NO, tool="take"), Others([*pairs, pair(3, NO, tool="take")])) == {"left": 1}
    assert constant(pairs[0], Others(pairs[:2])) is NOTHING


def test_the_majority_refuses_only_when_most_calls_of_the_tool_are_refused():
    pairs = [pair(0, {"left": 1}), pair(1, NO), pair(2, NO), pair(3, {"left": 2})]
    others = Others(pairs)
    assert majority(pairs[0], others) is True  # NO, NO, answer
    assert majority(pairs[1], others) is False  # answer, NO, answer
    assert majority(pairs[0], Others([pairs[0], pairs[1], pairs[3]])) is False  # a tie answers
    assert majority(pairs[0], Others(pairs[:1])) is None


def test_copying_takes_the_nearest_record_shown_the_latest_of_equals():
    records = [
        Record(turn=0, call=call("look", "lamp"), result={"left": 7}),
        Record(turn=0, call=call("take", "kite"), result={"taken": "kite"}),
        Record(turn=1, call=call("look", "kite"), result={"left": 2}),
    ]
    near = pair(0, {"left": 3}, records=records)
    assert copy(near, "up_to_turn") == {"left": 7}  # same tool outranks same argument
    assert copy(near, "gold") == {"left": 2}
    assert copy(
        pair(0, {}, records=records[:1] + [replace(records[0], result={"left": 8})]), "up_to_turn"
    ) == {"left": 8}
    assert copy(near, "none") is NOTHING


def test_rows_of_predictors_count_as_the_policys_do():
    pairs = [pair(0, {"item": "kite", "left": 3}), pair(1, {"item": "kite", "left": 3}), pair(2, NO)]
    shown = ['look {"item": "kite"} -> {"item": "kite", "left": 3}'] * 3
    rows = {(r["task"], r["by"]): r for r in predicted(pairs, "up_to_turn", shown)}
    assert rows["shelf-0", "copy"]["exact"] == 1.0 and rows["shelf-2", "copy"]["false_success"] == 1.0
    # shelf-0 and shelf-1 have one answer and one refusal left in other tasks: the refusal is first in the
    # alphabet
    assert (
        rows["shelf-0", "constant"]["false_refusal"] == 1.0 and rows["shelf-0", "constant"]["grounded"] == 0.0
    )
    assert rows["shelf-2", "constant"]["exact"] == 0.0 and rows["shelf-2", "constant"]["false_success"] == 1.0
    own = rows["shelf-2", "majority"]
    assert own["verdict"] == 0.0 and own["exact"] is own["shape"] is own["valid"] is None
    assert {by for _, by in rows} == {"constant", "copy", "majority"}
    assert {r["by"] for r in predicted(pairs, "none", [""] * 3)} == {"constant", "majority"}
