"""One reading of a tool's schema: whatever draft it is written in, and however it names its parameters."""

import json

import pytest

from envace.chat.tool_schema import read_schema
from envace.chat.validate import validate_call
from envace.data.check import check_row
from envace.types import ToolCall

DESK = {
    "properties": {"kind": {"const": "desk"}, "floor": {"type": "integer"}},
    "required": ["kind", "floor"],
}
POST = {"properties": {"kind": {"const": "post"}, "zip": {"type": "string"}}, "required": ["kind", "zip"]}
DESK_CALL = {"kind": "desk", "floor": 3}
NODE = {"type": "object", "properties": {"child": {"$ref": "#/$defs/N"}}}


def row(schema, arguments):
    """A row whose one call gives these arguments."""
    function = {"name": "t", "description": "", "parameters": {"type": "object", **schema}}
    call = {"function": {"name": "t", "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": "done"},
    ]
    item = {"id": "C0", "question": "?", "pass_condition": "!", "weight": 1.0, "required_for_next_turn": True}
    checklists = [[[{**item, "focus_on": "assistant.tool_calls"}]]]
    tools = [{"type": "function", "function": function}]
    return {"uuid": "u", "messages": messages, "tools": tools, "checklists": checklists}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"oneOf": [POST, DESK]}, DESK_CALL, {"kind": "desk", "zip": "1"}),
        ({"anyOf": [POST, DESK]}, {"kind": "post", "zip": "1"}, {"kind": "post"}),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a": 1, "b": 2}, {"c": 1}),
        ({"$ref": "#/$defs/D", "$defs": {"D": DESK}}, DESK_CALL, {"kind": "desk"}),
        (
            {"properties": {"d": {"$ref": "#/definitions/D"}}, "definitions": {"D": DESK}},
            {},
            {"d": {"kind": 1}},
        ),
        ({"patternProperties": {"^x-": {"type": "string"}}}, {"x-colour": "red"}, {"colour": "red"}),
        ({"properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": NODE}}, {"n": {"child": {}}}, {"n": 1}),
        ({"properties": {"a": {"type": "string", "nullable": True}}}, {"a": None}, {"a": 1}),
        ({"properties": {"a": {"enum": ["x"], "nullable": True}}}, {"a": None}, {"a": "y"}),
        ({"properties": {"a": {"type": ["string", "null"]}}}, {"a": None}, {"a": 1}),
        ({"properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}}, {"a": 2}, {"a": 1}),
        ({"properties": {"a": {"items": [{"type": "string"}]}}}, {"a": ["x", 1]}, {"a": [1]}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {}}}, {"a": 1}, {"b": 1}),
        ({"additionalProperties": {"type": "string"}}, {"any": "x"}, {"any": 1}),
        ({"properties": {"$ref": {"type": "string"}, "enum": {}}}, {"$ref": "#/x", "enum": 1}, {"$ref": 1}),
    ],
)
def test_the_check_of_rows_and_episodes_read_a_schema_alike(schema, good, bad):
    for arguments, fine in ((good, True), (bad, False)):
        found = {fault.reason for fault in check_row(row(schema, arguments))}
        assert found == (set() if fine else {"bad_arguments"}), (arguments, found)
        if fine:
            tools = row(schema, arguments)["tools"]
            assert validate_call(ToolCall(name="t", arguments=arguments), tools) == (None, "")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/Slot"}}}, "refers to '#/$defs/Slot', which it does not hold"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, "which it does not hold"),
        ({"properties": {"a": {"$ref": "#/properties"}, "type": {"type": 3}}}, "is no JSON schema"),
        ({"properties": {"a": {"$ref": "#/x"}}, "x": {"type": 3}}, "refers to '#/x', which is no schema"),
        ({"properties": {"a": {"$ref": "#/$defs/S"}}, "$defs": {"S": {"$ref": "#/$defs/S"}}}, "without end"),
        ({"allOf": [{"$ref": "#"}]}, "without end"),
        ({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {}]}}}, "without end"),
        ({"properties": {"a": {"pattern": "("}}}, "is no JSON schema"),
        ({"required": "a"}, "is no JSON schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_named_by_the_check(schema, words):
    faults = check_row(row(schema, {}))
    assert [fault.reason for fault in faults] == ["bad_tools"] and words in faults[0].message
    with pytest.raises(ValueError, match="^(is|refers)"):
        read_schema(json.dumps(schema))
