"""Each rule finds its own fault and no other; rules do not hide one another."""

import copy
import json

import pytest
from pydantic import ValidationError
from test_cm2_rows import TOOL, foreign_row

from envace.data.check import check_row
from envace.data.faults import Reject
from envace.data.offers import argument_faults, read_tools, tool_faults
from envace.data.rules import RuleOptions


def dialogue():
    return copy.deepcopy(foreign_row()["extra_info"]["messages"])


def faults(messages, tools, **options):
    """Of a raw row, but for the checklist that every raw row lacks."""
    lacks, *found = check_row({"uuid": "u-1", "messages": messages, "tools": tools}, RuleOptions(**options))
    assert lacks.reason is Reject.NO_CHECKLIST
    return found


def reasons(messages, tools=(TOOL,), **options):
    return [f.reason for f in faults(messages, list(tools), **options)]


def test_a_good_dialogue_has_no_fault():
    assert reasons(dialogue()) == reasons(dialogue(), require_thinking=True, strict_tools=True) == []


def test_every_rule_reports_in_a_dialogue_that_breaks_them_all():
    messages = dialogue()
    messages[0]["content"] = "<think>"
    messages[1]["tool_calls"][0]["function"]["arguments"] = '{"harbour": "Brest"}'
    messages[2]["content"] = "4.1"  # JSON; the next result is not
    messages.insert(3, {"role": "tool", "content": "4.2 m"})
    messages[4]["content"] = "</tool_response>"
    messages[6]["content"] = ""
    messages.append({"role": "assistant", "content": "And?"})
    assert set(reasons(messages, [TOOL, TOOL], require_thinking=True)) == {
        Reject.DUPLICATE_TOOL,
        Reject.ROLE_ORDER,
        Reject.RESULT_COUNT,
        Reject.BAD_ARGUMENTS,
        Reject.RESULT_NOT_JSON,
        Reject.RESPONSE_TAG,
        Reject.BAD_THINKING,
        Reject.NO_THINKING,
        Reject.EMPTY_CONTENT,
    }


@pytest.mark.parametrize(
    "messages", [None, {}, [None], [{}], [{"role": 1}], [{"role": "user", "content": 1}], []]
)
@pytest.mark.parametrize(
    "tools",
    [
        None,
        {},
        [],
        [None],
        [{"function": 1}],
        [{"function": {"name": 1}}],
        [{"function": {"name": "a", "parameters": []}}],
    ],
)
def test_nothing_is_too_odd_for_the_rules(messages, tools):
    assert faults(messages, tools)


def offer(**parameters):
    [found] = read_tools([{"type": "function", "function": {"name": "t", "parameters": parameters}}])
    assert not found.fault
    return found


def test_a_type_is_told_with_the_value_that_does_not_fit():
    tool = offer(type="object", properties={"n": {"type": "integer"}, "s": {"type": ["string", "null"]}})
    assert argument_faults(tool, {"n": 3.0, "s": None}, "a") == []
    told = [f.message for f in argument_faults(tool, {"s": 1, "n": True}, "a")]
    assert told == ["'s' must be string or null, not 1", "'n' must be integer, not True"]


def test_arguments_are_required_and_known():
    closed = offer(type="object", properties={"x": {}}, required=["x"])
    assert [f.message for f in argument_faults(closed, {"y": 1}, "a")] == [
        "t needs 'x'",
        "'y' is no parameter of t",
    ]
    assert not list(argument_faults(closed, {"x": [1]}, "a"))
    assert not list(argument_faults(offer(type="object", additionalProperties=True), {"y": 1}, "a"))
    [none] = read_tools([{"type": "function", "function": {"name": "t"}}])
    assert list(argument_faults(none, {"y": 1}, "a")) and not list(argument_faults(none, {}, "a"))


STRICT_PARTS = [
    (("function", "description"), ...),
    (("function", "parameters"), ...),
    (("function", "parameters"), {}),
    (("function", "parameters"), None),
    (("function", "parameters", "type"), ...),
    (("function", "parameters", "required"), ...),
    (("function", "parameters", "properties"), ...),
    (("function", "parameters", "properties", "port", "type"), ["string", "null"]),
    (("function", "parameters", "properties", "port", "type"), ...),
    (("function", "parameters", "properties", "port", "enum"), [1, 2]),
    (("function", "parameters", "properties", "port", "description"), 7),
    (("type",), ...),
]


LOOSENED = (  # what the verl of the published loader refuses and today's reads
    ("parameters", ...),
    ("required", ...),
    ("type", ["string", "null"]),
    ("enum", [1, 2]),
)


def changed(path, value):
    """The tool with one part replaced; `...` removes it."""
    tool = copy.deepcopy(TOOL)
    spot = tool
    for key in path[:-1]:
        spot = spot[key]
    spot.pop(path[-1], None) if value is ... else spot.update({path[-1]: value})
    return tool


@pytest.mark.parametrize(("path", "value"), STRICT_PARTS)
def test_a_tool_the_published_loader_cannot_read_is_loose_only_where_asked(path, value):
    tool = changed(path, value)
    offers = read_tools([tool])
    assert Reject.LOOSE_TOOL not in [f.reason for f in tool_faults([tool], offers, "tools")]
    assert Reject.LOOSE_TOOL in [f.reason for f in tool_faults([tool], offers, "tools", strict=True)]


def test_todays_verl_reads_the_strict_tool_and_a_few_of_the_loose_ones():
    from verl.tools.schemas import OpenAIFunctionToolSchema  # takes seconds

    [offer] = read_tools([TOOL])
    assert offer.loose is None and OpenAIFunctionToolSchema.model_validate(TOOL)
    for path, value in STRICT_PARTS:
        tool = changed(path, value)
        if (path[-1], value) in LOOSENED:
            OpenAIFunctionToolSchema.model_validate(tool)
        else:
            with pytest.raises(ValidationError):
                OpenAIFunctionToolSchema.model_validate(tool)


def test_checklist_dependences_may_be_long_and_need_no_order():
    row = foreign_row()
    [[[first], _]] = row["extra_info"]["interaction_kwargs"]["checklist_list"]
    n = 400
    chain = [
        {
            **first,
            "id": f"C{k}",
            "weight": 1 / n,
            "focus_on": "tool.content",
            "dependence": [f"C{k + 1}"] if k < n - 1 else [],
        }
        for k in range(n)
    ]
    row["extra_info"]["interaction_kwargs"]["checklist_list"][0][0] = chain
    assert check_row(row) == []
    chain[-1]["dependence"] = ["C0"]
    [fault] = check_row(row)
    assert "in a circle" in fault.message
    json.dumps(fault.message)
