"""Calls and structured output by constraint: each keyword of a schema binds, in both families, or is listed.

Oracles: jsonschema and Pydantic read what a random walk through the grammar has written.
"""

from __future__ import annotations

import enum
import json
import tracemalloc
from typing import Annotated, Any, Literal

import httpx2 as httpx
import jsonschema
import pytest
from pydantic import BaseModel, Field

from support.fakes.engine import engine_of, scripted
from support.servers.scripted import PLAIN_TEMPLATE, replying, serving
from support.texts.constraints import accepts, random_text
from trigraph.models.errors import TrigraphError
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.parameter_text import searched
from trigraph.runtime.server.reply_form import ReplyForm, ToolChoice, reply_form
from trigraph.runtime.text.reply import assistant_message
from trigraph.runtime.text.reply_parser import ReplyFormat, ReplyParser

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

ENGINE, _ = engine_of(scripted(b"a", 1))
END = "\n</parameter>\n"
TAGS = [f"{END}<parameter=".encode(), f"{END}</function>".encode()]


class Color(enum.Enum):
    red = "red"
    blue = "blue"


class Node(BaseModel):
    value: int
    next: Node | None


class Part(BaseModel):
    weight: Annotated[float, Field(ge=0, le=5)]


class Arguments(BaseModel):
    color: Color
    maybe: Literal["x", "y"] | None
    constant: Literal["K"]
    pattern: Annotated[str, Field(pattern="^[a-c]+$")]
    short: Annotated[str, Field(min_length=1, max_length=4)]
    text_or_number: Annotated[str, Field(max_length=3)] | int
    text_or_list: Annotated[str, Field(max_length=3)] | list[int]
    mixed: Literal["5", 6, True, None]
    node: Node
    parts: list[Part]
    several: dict[str, Color]
    count: Annotated[int, Field(le=9)]
    free: str
    later: Annotated[str, Field(pattern="^[x-z]{0,3}b$")] = "b"


MORE = {"when": {"type": "string", "format": "date"}, "anything": {}}


def tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def forced(parameters: Any, family: str = "xml", **choice: Any) -> ReplyForm:
    form = reply_form(ReplyFormat(calls=family), ToolChoice([tool(parameters)], named="f", **choice), None)
    assert isinstance(form, ReplyForm)
    return form


def called(form: ReplyForm, parameters: Any, family: str, seed: int) -> Any:
    """The arguments of the call that a random walk makes."""
    text = random_text(ENGINE.model.guide(form), seed, 6000, TAGS if family == "xml" else ())
    parser = ReplyParser(ReplyFormat(calls=family), [tool(parameters)], closed=True)
    message = assistant_message(parser.push(text) + parser.finish())
    return json.loads(message["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 25), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("family", ["xml", "json"])
def test_calls_keep_to_all_of_a_schema(family: str, seeds: range) -> None:
    schema = Arguments.model_json_schema()
    schema["properties"] |= MORE
    schema["required"] += MORE
    form = forced(schema, family, strict=frozenset({"f"}))
    assert not form.notes
    for seed in seeds:
        found = called(form, schema, family, seed)
        jsonschema.validate(found, schema, format_checker=jsonschema.FormatChecker())
        Arguments.model_validate(found)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/E"}, ["red"], ["green", "re", '"red"']),
        ({"anyOf": [{"$ref": "#/$defs/E"}, {"type": "null"}]}, ["red", "null"], ["green"]),
        ({"allOf": [{"$ref": "#/$defs/E"}, {"maxLength": 3}]}, ["red"], ["blue"]),
        ({"const": "a b"}, ["a b"], ["a", ""]),
        ({"const": ""}, [""], ["a"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "日本語"], ["a", "abcd"]),
        ({"type": "string", "pattern": "^a|b$"}, ["ax", "xb"], ["xa", "bx"]),
        ({"type": "string", "pattern": "\\d/[|]"}, ["x1/|y"], ["1/"]),
        ({"type": "string", "format": "ipv4"}, ["1.2.3.4"], ["1.2.3", "a"]),
        ({"enum": ["5", 6]}, ["6"], ["5", "7"]),
        ({"type": ["string", "null"], "maxLength": 4}, ["abc", "null"], ["abcde", "None"]),
        ({"type": ["string", "array"], "items": {"type": "integer"}}, ["x", "[1]"], ["[x]", "[1"]),
        (
            {"type": "string"},
            [
                "a\n\n</p>",
                "",
                "a</parameter> b > c",
                "</parameter>",
                "a\n</function>\nb",
                "\n<parameter=y>\n",
                "</function></tool_call>",
            ],
            ["a</parameter>\n</function>", "a\n</parameter>\n<parameter=b>", "</parameter> </function>"],
        ),
    ],
    ids=str,
)
def test_texts_of_a_parameter(schema: Any, good: list[str], bad: list[str]) -> None:
    form = forced({"properties": {"x": schema, "y": {}}, "required": ["x"], "$defs": {"E": {"enum": ["red", "blue"]}}})
    head, tail = "<tool_call>\n<function=f>\n<parameter=x>\n", f"{END}</function>\n</tool_call>"
    assert [text for text in good if not accepts(ENGINE.model.guide(form), head + text + tail)] == []
    assert [text for text in bad if accepts(ENGINE.model.guide(form), head + text + tail)] == []


def test_parameters_behind_references_and_parts() -> None:
    parameters = {
        "$ref": "#/$defs/A",
        "$defs": {
            "A": {"properties": {"x": {"type": "integer"}}, "required": ["x"], "allOf": [{"$ref": "#/$defs/B"}]},
            "B": {"properties": {"y": {"enum": ["z"]}}, "required": ["y"]},
        },
    }
    assert called(forced(parameters), parameters, "xml", 1).keys() == {"x", "y"}


@pytest.mark.parametrize("family", ["xml", "json"])
def test_tools_whose_definitions_have_one_name(family: str) -> None:
    tools = [
        tool({"properties": {"x": {"$ref": "#/$defs/D"}}, "required": ["x"], "$defs": {"D": {"enum": [value]}}}, name)
        for name, value in (("f", "one"), ("g", "two"))
    ]
    form = reply_form(ReplyFormat(calls=family), ToolChoice(tools, required=True, parallel=False), None)
    assert form is not None
    for seed in range(6):
        text = random_text(ENGINE.model.guide(form), seed, 2000, TAGS if family == "xml" else ())
        assert ("one" in text) == ("=f>" in text or '"f"' in text) != ("two" in text)


@pytest.mark.parametrize("family", ["xml", "json"])
def test_strict_tools_that_may_be_called(family: str) -> None:
    parameters = {"properties": {"x": {"enum": ["one"]}}, "required": ["x"]}
    choice = ToolChoice([tool(parameters)], strict=frozenset({"f"}))
    assert reply_form(ReplyFormat(calls=family), ToolChoice([tool(parameters)]), None) is None
    form = reply_form(ReplyFormat(calls=family), choice, None)
    assert form is not None
    right = f"<function=f>\n<parameter=x>\none{END}</function>"
    if family == "json":
        right = '{"name": "f", "arguments": {"x": "one"}}'
    call = f"<tool_call>\n{right}\n</tool_call>"
    for text in ("Hello.", "", call, f"I look.\n{call}\n{call}\nSo.", "a <tool_cal"):
        assert accepts(ENGINE.model.guide(form), text), text
    for text in ("<tool_call>", f"x {call.replace('one', 'two')}", call.replace("f", "g", 1), "<function=f>\n"):
        assert not accepts(ENGINE.model.guide(form), text), text


def test_strict_refuses_what_is_not_enforced() -> None:
    parameters = {"properties": {"tags": {"type": "array", "uniqueItems": True}}}
    assert [str(note) for note in forced(parameters).notes] == ["uniqueItems at f/properties/tags is not enforced"]
    with pytest.raises(ApiError, match="the tool 'f' is strict, and uniqueItems at /properties/tags is not enforced"):
        forced(parameters, strict=frozenset({"f"}))
    assert forced({"properties": {"x": {"type": "string", "format": "password"}}}, strict=frozenset({"f"})).notes


@pytest.mark.parametrize(
    "schema",
    [{"properties": {"x": {"type": "nothing"}}}, {"properties": {"x": {"$ref": "#/no"}}}, {"properties": 3}],
    ids=str,
)
def test_errors_name_the_tool_and_show_no_grammar(schema: Any) -> None:
    with pytest.raises(ApiError, match="the parameters of the tool 'f' cannot be used") as caught:
        forced(schema)
    assert "start:" not in str(caught.value) and "VALUE" not in str(caught.value)


def test_references_that_multiply_are_refused() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for i in range(40):
        definitions[f"d{i + 1}"] = {"anyOf": [{"$ref": f"#/$defs/d{i}"}, {"$ref": f"#/$defs/d{i}", "maxLength": 99}]}
    with pytest.raises(ApiError, match=r"cannot be used: .*(more than 2000|too)"):
        forced({"properties": {"x": {"$ref": "#/$defs/d40"}}, "$defs": definitions})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {
                "properties": {
                    "x": {"$ref": "#/$defs/d0"},
                    "y": {"items": {"anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(1200)]}},  # no chain is long
                },
                "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1200)} | {"d1200": {}},
            },
            "lead more than 100 deep",
        ),
        ({"properties": {"x": {"type": "string", "pattern": f"[{'a' * 70_000}]"}}}, "more than 65,536 characters"),
        (
            {
                "properties": {f"x{i}": {"$ref": "#/$defs/d"} for i in range(200)},
                "$defs": {"d": {"enum": [f"value {i}" for i in range(3000)]}},
            },
            "more than 1,048,576 characters",
        ),
        (
            {
                "properties": {f"x{i}": {"$ref": "#/$defs/d"} for i in range(100)},
                "$defs": {"d": {"anyOf": [{"enum": ["a"]}, *[{"type": "integer", "enum": ["a"]}] * 950]}},
            },
            "more than 100,000 schemas",
        ),
    ],
    ids=["deep references", "a long pattern", "repeated values", "repeated alternatives"],
)
def test_the_text_of_parameters_is_bounded(parameters: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        forced(parameters)


def test_a_form_that_is_too_long_is_not_written_first() -> None:
    """Each parameter that refers to an object repeats the whole schema: two gigabytes of one with 2,000 of them."""
    definition = {"type": "object", "description": "x" * 200_000}
    parameters = {"properties": {f"x{i}": {"$ref": "#/$defs/d"} for i in range(100)}, "$defs": {"d": definition}}
    tracemalloc.start()
    try:
        with pytest.raises(TrigraphError, match="more than 262,144 characters"):
            forced(parameters)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pattern", ["(^a|c)d", "a$b", "(a$)"])
def test_anchors_within_a_pattern_are_not_guessed(pattern: str) -> None:
    assert searched(pattern) is None


def test_a_strict_reply_is_refused_where_it_is_not_enforced() -> None:
    schema = {"type": "array", "uniqueItems": True}
    format = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    with serving(replying("[]", template=PLAIN_TEMPLATE)) as address:
        asked = {"messages": [{"role": "user", "content": "Hi"}], "response_format": format, "max_tokens": 9}
        refused = httpx.post(address + "/v1/chat/completions", json=asked)
        format["json_schema"]["strict"] = False  # type: ignore[index]
        taken = httpx.post(address + "/v1/chat/completions", json=asked)
    assert (refused.status_code, taken.status_code) == (400, 200)
    assert "is strict, and uniqueItems" in refused.json()["error"]["message"]
