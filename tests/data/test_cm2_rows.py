"""CM2 rows: there and back, foreign rows, and every fault named by field."""

import copy
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envace.data.check import check_row
from envace.data.faults import Reject
from envace.data.schema import row_from_task, task_from_row
from envace.data.store import SCHEMA
from envace.errors import DataError
from envace.types import Record, ToolCall, replace
from envace.worlds.desk.tasks import generate

TOOL = {
    "type": "function",
    "function": {
        "name": "get_tide",
        "description": "Tide of a port.",
        "parameters": {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]},
    },
}


def foreign_row(uuid="u-1"):
    """A row as another pipeline would make it: thoughts, two turns, no rules, no world."""
    ask = {"role": "user", "content": f"Tide in Brest? (case {uuid})", "tool_calls": []}
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_tide", "arguments": '{"port": "Brest"}'},
    }
    dialogue = [
        ask,
        {"role": "assistant", "content": "<think>\nask the tool\n</think>\n\n", "tool_calls": [call]},
        {"role": "observation", "content": '{"tide_m": 4.1}', "tool_calls": None},
        {"role": "assistant", "content": "<think>\ndone\n</think>\n\n4.1 m.", "tool_calls": []},
        {"role": "user", "content": "Thanks!", "tool_calls": []},
        {"role": "assistant", "content": "<think>\npolite\n</think>\n\nAny time.", "tool_calls": []},
    ]
    item = {
        "id": "C0",
        "evidence": [{"turn": 0, "step": 1, "from": "assistant.tool_calls", "snippet": "get_tide"}],
        "focus_on": "assistant.tool_calls",
        "question": "Was the tide looked up?",
        "pass_condition": "a call for Brest",
        "failure_examples": ["no call"],
        "required_for_next_turn": True,
        "dependence": [],
        "weight": 1.0,
    }
    last = {**item, "focus_on": "assistant.content.user_visible_reply", "required_for_next_turn": False}
    return {
        "uuid": uuid,
        "messages": [ask],
        "data_source": "somewhere",
        "extra_info": {
            "messages": dialogue,
            "tools": json.dumps([TOOL]),
            "interaction_kwargs": {"name": "checklist", "checklist_list": [[[item], [last]]]},
            "need_tools_kwargs": True,
            "original_index": uuid,
        },
    }


@pytest.mark.parametrize("split", ["train", "held", "warm"])
def test_desk_tasks_come_back_unchanged(split):
    for task in generate(5, split, 60):
        row = json.loads(json.dumps(row_from_task(task)))
        assert check_row(row) == []
        assert task_from_row(row) == task


def test_a_desk_row_has_the_cm2_shape():
    [task] = generate(5, "train", 1)
    row = row_from_task(task)
    assert set(row) == {"uuid", "messages", "data_source", "extra_info"}
    extra = row["extra_info"]
    assert [m["role"] for m in row["messages"]] == ["system", "user"] and extra["original_index"] == row[
        "uuid"
    ]
    assert isinstance(extra["tools"], str) and isinstance(extra["world"], str)
    assert extra["messages"][: len(row["messages"])] == row["messages"]
    [variant] = extra["interaction_kwargs"]["checklist_list"]
    assert len(variant) == task.n_turns and isinstance(variant[0][0]["extra_info"]["rule"], str)
    call = next(m for m in extra["messages"] if m["tool_calls"])["tool_calls"][0]
    assert isinstance(call["function"]["arguments"], str)


def test_a_foreign_row_becomes_a_task_with_records_and_thoughts():
    task = task_from_row(foreign_row())
    assert task.n_turns == 2 and task.user_turns == ("Thanks!",) and task.source == "somewhere"
    assert task.records == (
        Record(turn=0, call=ToolCall(name="get_tide", arguments={"port": "Brest"}), result={"tide_m": 4.1}),
    )
    assert [m.role for m in task.reference] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert task.reference[3].thinking == "done" and task.reference[3].content == "4.1 m."
    assert task.reference[2].name == "get_tide" and task.reference[5].turn == 1
    assert task.checklist[0][0].rule is None and task.world is None
    assert task_from_row(row_from_task(task)) == task


def test_parallel_answers_belong_to_the_calls_they_name_whatever_their_order_and_other_turns_ids():
    row = foreign_row()
    dialogue = row["extra_info"]["messages"]
    call = dialogue[1]["tool_calls"][0]
    other = call | {"id": "c2", "function": call["function"] | {"arguments": '{"port": "Calais"}'}}
    late, early = ({"role": "tool", "tool_call_id": f"c{k}", "content": f'{{"tide_m": {k}}}'} for k in (2, 1))
    again = [dialogue[1], early | {"content": '{"tide_m": 9}'}]  # ids that a second message uses anew
    dialogue[1:3] = [dialogue[1] | {"tool_calls": [call, other]}, late, early, *again]
    found = [(r.call.named["port"], r.result["tide_m"]) for r in task_from_row(row).records]
    assert found == [("Brest", 1), ("Calais", 2), ("Brest", 9)]


def test_turns_beyond_the_checklist_are_left_out():
    row = foreign_row()
    del row["extra_info"]["interaction_kwargs"]["checklist_list"][0][1]
    assert task_from_row(row).n_turns == 1


def test_a_task_without_reference_cannot_be_a_row():
    [task] = generate(5, "train", 1)
    with pytest.raises(DataError, match="reference"):
        row_from_task(replace(task, reference=()))


def broken(path, value):
    """The foreign row with one part replaced; `...` removes it."""
    row = copy.deepcopy(foreign_row())
    spot = row
    for key in path[:-1]:
        spot = spot[key]
    if value is ...:
        del spot[path[-1]]
    else:
        spot[path[-1]] = value
    return row


ITEM = ("extra_info", "interaction_kwargs", "checklist_list", 0, 0, 0)
TALK = ("extra_info", "messages")


@pytest.mark.parametrize(
    ("path", "value", "reason", "field"),
    [
        (("uuid",), ..., Reject.MISSING_FIELD, "uuid"),
        (("uuid",), 7, Reject.WRONG_TYPE, "uuid"),
        (("uuid",), "half \ud800", Reject.BAD_TEXT, "row"),
        (("extra_info",), None, Reject.MISSING_FIELD, "extra_info"),
        (("extra_info", "tools"), "[", Reject.BAD_TOOLS, "extra_info.tools"),
        (
            ("extra_info", "tools"),
            json.dumps([TOOL, TOOL]),
            Reject.DUPLICATE_TOOL,
            "extra_info.tools[1].function.name",
        ),
        (
            ("extra_info", "tools"),
            "[]",
            Reject.UNKNOWN_TOOL,
            "extra_info.messages[1].tool_calls[0].function.name",
        ),
        ((*TALK, 0, "role"), "wizard", Reject.ROLE_ORDER, "extra_info.messages[0].role"),
        ((*TALK, 5), ..., Reject.ROLE_ORDER, "extra_info.messages"),
        ((*TALK, 2), ..., Reject.RESULT_COUNT, "extra_info.messages[2]"),
        ((*TALK, 2, "content"), "4.1 m", Reject.RESULT_NOT_JSON, "extra_info.messages[2].content"),
        (
            (*TALK, 1, "tool_calls", 0, "function", "arguments"),
            "{",
            Reject.WRONG_TYPE,
            "extra_info.messages[1].tool_calls[0].function.arguments",
        ),
        (("messages",), [], Reject.ROLE_ORDER, "messages"),
        (("messages", 0), {"role": "user", "content": "other"}, Reject.PREFIX_MISMATCH, "messages"),
        ((*ITEM[:3],), [], Reject.BAD_CHECKLIST, "extra_info.interaction_kwargs.checklist_list"),
        ((*ITEM[:5],), [], Reject.BAD_WEIGHTS, "extra_info.interaction_kwargs.checklist_list[0][0]"),
        ((*ITEM, "weight"), 0.8, Reject.BAD_WEIGHTS, "extra_info.interaction_kwargs.checklist_list[0][0]"),
        (
            (*ITEM, "focus_on"),
            "tools",
            Reject.BAD_CHECKLIST,
            "extra_info.interaction_kwargs.checklist_list[0][0][0].focus_on",
        ),
        (
            (*ITEM, "dependence"),
            ["C9"],
            Reject.BAD_CHECKLIST,
            "extra_info.interaction_kwargs.checklist_list[0][0][0].dependence",
        ),
        (
            (*ITEM, "extra_info"),
            {"rule": '{"kind": "x"}'},
            Reject.BAD_RULE,
            "extra_info.interaction_kwargs.checklist_list[0][0][0].extra_info.rule",
        ),
        ((*ITEM[:4],), [[], [], []], Reject.TURN_COUNT, "extra_info.interaction_kwargs.checklist_list[0]"),
        (("extra_info", "world"), "[1]", Reject.BAD_EXTENSION, "extra_info.world"),
        (("extra_info", "records"), '[{"turn": 0}]', Reject.BAD_EXTENSION, "extra_info.records"),
    ],
)
def test_each_fault_is_named_with_reason_and_field(path, value, reason, field):
    row = broken(path, value)
    faults = check_row(row)
    assert (reason, field) in [(f.reason, f.field) for f in faults], faults
    with pytest.raises(DataError):
        task_from_row(row)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(max_size=3), v, max_size=2),
    max_leaves=4,
)
PATHS = [
    ("uuid",),
    ("messages",),
    ("messages", 0),
    ("extra_info",),
    ("extra_info", "tools"),
    TALK,
    (*TALK, 1),
    (*TALK, 1, "tool_calls"),
    (*TALK, 1, "tool_calls", 0),
    (*TALK, 1, "tool_calls", 0, "function"),
    (*TALK, 2, "content"),
    ITEM[:2],
    ITEM[:3],
    ITEM[:4],
    ITEM[:5],
    ITEM,
    (*ITEM, "evidence"),
    (*ITEM, "weight"),
    (*ITEM, "dependence"),
    (*ITEM, "extra_info"),
    ("extra_info", "records"),
]


@settings(deadline=None)
@given(st.sampled_from(PATHS), json_values)
def test_no_row_makes_the_check_raise_and_every_passing_row_converts_and_fits_the_schema(path, value):
    row = broken(path, value)
    if not check_row(row):
        pa.Table.from_pylist([row_from_task(task_from_row(row))], schema=SCHEMA)
