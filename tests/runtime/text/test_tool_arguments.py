"""The tools of a request: what is none is refused, and what values of arguments become by a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.servers.replies import XML
from trigraph.models.errors import TrigraphError
from trigraph.runtime.text.argument_values import typed
from trigraph.runtime.text.reply_parser import ReplyParser
from trigraph.runtime.text.tool_arguments import types_of


@pytest.mark.parametrize("tool", [3, {}, {"function": {}}, {"function": {"name": 1}}, {"name": "f", "parameters": []}])
def test_what_is_no_tool_is_refused(tool: Any) -> None:
    with pytest.raises(TrigraphError, match=r"is no tool|must be a JSON schema"):
        ReplyParser(XML, [tool])


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "number"}, {"oneOf": [{"type": "array"}]}]}, {"number", "array"}),
        ({"enum": [1, "a", None]}, {"integer", "string", "null"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/A~1B"}, {"object"}),
        ({"$ref": "#/$defs/circle"}, {"null"}),
        ({"$ref": "#/nowhere/at/all"}, set()),
        ({"description": "anything"}, set()),
        ({"type": 3, "enum": 4, "anyOf": 5, "$ref": 6}, set()),
        ({"type": [{}, ["string"], "null"]}, {"null"}),
        (None, set()),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    circle = {"anyOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/circle"}, {"type": "null"}]}
    assert types_of(schema, {"$defs": {"A/B": {"type": "object"}, "circle": circle}}) == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        (" 7 ", "integer", "7"),
        ("07", "integer", '"07"'),
        ("7.5", "integer", '"7.5"'),
        ("7", "number string", "7"),
        ("12345678901234567890123", "integer", "12345678901234567890123"),
        ("NaN", "number", '"NaN"'),
        ("[NaN]", "array", '"[NaN]"'),
        ("[" * 100000, "array", json.dumps("[" * 100000)),
        ("false", "boolean", "false"),
        ("yes", "boolean", '"yes"'),
        ("None", "string null", "null"),
        ("None", "string", '"None"'),
        ("{}", "array", '"{}"'),
        ("x\ny", "", '"x\\ny"'),
    ],
)
def test_values(text: str, types: str, value: str) -> None:
    assert typed(text, set(types.split())) == value
