"""Allow-list, then JSON schema; deterministic and without a network."""

import pytest

from envace.chat.validate import validate_call
from envace.errors import DataError
from envace.types import FailureReason, ToolCall


def tool(name="move", **schema):
    parameters = {"type": "object", **schema}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


MOVE = tool(
    properties={
        "id": {"type": "string", "pattern": "^#[a-z]+$"},
        "city": {"type": "string", "enum": ["lima", "oslo"]},
        "n": {"type": ["integer", "null"]},
    },
    required=["id"],
    additionalProperties=False,
)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"id": "#a"}, ""),
        ({"id": "#a", "city": "oslo", "n": None}, ""),
        ({}, "missing id"),
        ({"id": 3}, "id must be string"),
        ({"id": "a"}, "id has the wrong format"),
        ({"id": "#a", "city": "rome"}, "city must be one of lima, oslo"),
        ({"id": "#a", "n": 1.5}, "n must be integer or null"),
        ({"id": "#a", "x": 1}, "unknown argument x"),
    ],
)
def test_schema(arguments, sentence):
    failure, detail = validate_call(ToolCall(name="move", arguments=arguments), (MOVE,))
    assert detail == sentence
    assert failure == (FailureReason.SCHEMA_VIOLATION if sentence else None)


def test_unknown_tool_comes_before_its_arguments():
    failure, detail = validate_call(ToolCall(name="fly", arguments={}), (MOVE,))
    assert (failure, detail) == (FailureReason.UNKNOWN_TOOL, "no tool fly")


def test_a_tool_without_a_schema_takes_anything():
    assert validate_call(ToolCall(name="t", arguments={"x": 1}), ({"name": "t"},)) == (None, "")


def test_a_broken_schema_is_the_datas_fault():
    with pytest.raises(DataError, match="tool move"):
        validate_call(ToolCall(name="move", arguments={}), (tool(required="id"),))


def test_a_schema_that_points_outside_is_never_fetched():
    outside = tool(properties={"id": {"$ref": "http://127.0.0.1:9/schema.json"}})
    with pytest.raises(DataError, match="127.0.0.1:9"):
        validate_call(ToolCall(name="move", arguments={"id": 1}), (outside,))


def test_a_hostile_value_makes_a_short_sentence():
    _, detail = validate_call(ToolCall(name="move", arguments={"id": "#a", "x" * 5000: 1}), (MOVE,))
    assert len(detail) <= 160
