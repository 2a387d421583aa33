"""JSON schemas as generators write them: what is enforced is enforced, and the rest is listed.

Oracles: JSON Schema's own test suite, jsonschema, and Pydantic.
"""

import datetime
import enum
import ipaddress
import json
import os
import pathlib
import re
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
from pydantic import BaseModel, Field, TypeAdapter

from support.fakes.engine import engine_of, scripted
from support.texts.constraints import accepts, random_text
from trigraph.models.errors import TrigraphError
from trigraph.runtime import JsonSchema
from trigraph.runtime.sampling.guide import Guide
from trigraph.runtime.sampling.text_formats import FORMATS

pytest.importorskip("llguidance", reason="llguidance is not installed: no constraints")

SUITE = Path(os.environ.get("JSON_SCHEMA_TEST_SUITE", "does not exist"))
ENGINE, _ = engine_of(scripted(b"a", 1))


class Color(enum.Enum):
    red = "red"
    blue = "blue"


class Person(BaseModel):
    name: Annotated[str, Field(max_length=8)]
    age: Annotated[int, Field(ge=0, le=130)] | None = None
    tags: set[Color] = set()


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    weight: float


# A type, and the keywords of its schema that are not enforced.
TYPES: dict[Any, list[str]] = {
    int: [],
    float: [],
    bool: [],
    str: [],
    type(None): [],
    bytes: ["format 'binary'"],
    list[int]: [],
    set[int]: ["uniqueItems"],
    frozenset[str]: ["uniqueItems"],
    Annotated[set[Color], Field(min_length=1)]: ["uniqueItems"],
    tuple[int, str]: [],
    tuple[int, ...]: [],
    dict[str, int]: [],
    dict[Literal["a", "b"], int]: [],
    dict[Color, int]: [],
    dict[str, list[dict[str, bool]]]: [],
    Literal["a", 1, None]: [],
    Literal["x", "y"] | None: [],
    Color: [],
    pydantic.SecretStr: ["format 'password'"],
    pathlib.PurePosixPath: ["format 'path'"],
    ipaddress.IPv4Address: [],
    ipaddress.IPv6Address: [],
    ipaddress.IPv4Network: ["format 'ipv4network'"],
    pydantic.IPvAnyAddress: [],
    datetime.date: [],
    uuid.UUID: [],
    pydantic.Base64Bytes: [],
    re.Pattern: ["format 'regex'"],
    Annotated[str, Field(pattern="^a+b?$", min_length=2)]: [],
    Annotated[str, Field(min_length=2, max_length=5)]: [],
    Annotated[int, Field(ge=0, le=10, multiple_of=2)]: [],
    int | str | list[Person]: ["uniqueItems"],
    Person: ["uniqueItems"],
    Node: [],
    Annotated[Cat | Dog, Field(discriminator="kind")]: [],
    Any: [],
}


def guide_of(schema: Any) -> Guide:
    return ENGINE.model.guide(JsonSchema(json.dumps(schema)))


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_schemas_of_pydantic(kind: Any) -> None:
    schema = TypeAdapter(kind).json_schema()
    constraint = JsonSchema(json.dumps(schema))
    assert [note.keyword for note in constraint.notes] == TYPES[kind]
    checked = 0
    for seed in range(12):
        text = random_text(ENGINE.model.guide(constraint), seed)
        try:
            value = json.loads(text)
        except ValueError:  # cut at the end
            continue
        jsonschema.validate(_unique(value) if TYPES[kind] == ["uniqueItems"] else value, schema)
        if not TYPES[kind]:
            TypeAdapter(kind).validate_json(text)
        checked += 1
    assert checked > 5


def _unique(value: Any) -> Any:
    """The value with each list's repeated items once."""
    if isinstance(value, dict):
        return {key: _unique(item) for key, item in value.items()}
    return [item for i, item in enumerate(value) if item not in value[:i]] if isinstance(value, list) else value


@pytest.mark.parametrize("name", FORMATS)
def test_texts_of_a_format(name: str) -> None:
    """Each is taken by who knows the format best, and examples are let through."""
    examples = {
        "date": ["2024-02-29", "1999-12-31"],
        "time": ["23:59:59Z", "08:30:06.283185+01:00"],
        "date-time": ["2024-02-29T23:59:59.5-08:00"],
        "duration": ["P4DT12H30M5S", "PT36H", "P1W", "P1Y2M"],
        "email": ["joe.bloggs+x@example.com"],
        "hostname": ["www.example.com", "localhost", "a-b.example"],
        "ipv4": ["192.168.0.1", "0.0.0.0"],
        "ipv6": ["::1", "::", "12::42", "::ffff:12", "1:2:3:4:5:6:7:8", "a:b:c:d:e:f:1::"],
        "ipvanyaddress": ["10.0.0.1", "fe80::1"],
        "uuid": ["2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
        "uri": ["http://user:pw@host.example:8080/a/b?c=d#e", "urn:isbn:123", "mailto:a@b.example", "ftp://[::1]/x"],
        "json-pointer": ["", "/a/b~1c", "/0"],
        "base64": ["", "aGVsbG8=", "aGVsbG8h"],
        "byte": ["aGk="],
    }
    for text in examples[name]:
        assert accepts(guide_of({"type": "string", "format": name}), json.dumps(text)), text
    reads: dict[str, Any] = {
        "date": datetime.date, "time": datetime.time, "date-time": datetime.datetime, "uuid": uuid.UUID,
        "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address, "ipvanyaddress": pydantic.IPvAnyAddress,
        "base64": pydantic.Base64Bytes, "byte": pydantic.Base64Bytes, "uri": str, "email": str, "hostname": str,
        "duration": str, "json-pointer": str,
    }  # fmt: skip
    for seed in range(40):
        text = random_text(guide_of({"type": "string", "format": name, "maxLength": 60}), seed)
        if not text.endswith('"'):  # cut
            continue
        if name != "time":  # which the checker reads without offsets
            jsonschema.validate(json.loads(text), {"format": name}, format_checker=jsonschema.FormatChecker())
        if "0000-" not in text:
            TypeAdapter(reads[name]).validate_json(text)


@pytest.mark.skipif(
    not SUITE.is_dir(),
    reason="JSON_SCHEMA_TEST_SUITE does not name the folder tests/draft2020-12 of JSON Schema's test suite, "
    "which the source distribution of jsonschema has",
)
def test_the_suite_of_json_schema() -> None:
    """No group lets a wrong value through, but those whose notes say so."""
    enforced, noted, refused, wrong = 0, set[str](), set[str](), []
    for path in sorted(SUITE.glob("*.json")):
        for group in json.loads(path.read_text()):
            if not isinstance(group["schema"], dict):
                continue
            schema = {key: value for key, value in group["schema"].items() if key != "$schema"}
            try:
                constraint = JsonSchema(json.dumps(schema))
            except TrigraphError as error:
                refused.add(str(error).partition("used: ")[2].split(chr(39))[0][:40])
                continue
            if constraint.notes:
                noted |= {note.keyword.split(" ")[0] for note in constraint.notes}
                continue
            enforced += 1
            for case in group["tests"]:
                text = json.dumps(case["data"], ensure_ascii=False)
                if not case["valid"] and accepts(
                    ENGINE.model.guide(constraint), text.replace(": ", ":").replace(", ", ",")
                ):
                    wrong.append(f"{path.stem}: {group['description']}: {case['description']}")
    print(enforced, sorted(noted), sorted(refused))
    assert not wrong
    assert enforced > 180
    assert noted == {
        "$dynamicRef", "contains", "dependentRequired", "dependentSchemas", "format", "if", "maxProperties",
        "minProperties", "multipleOf", "not", "oneOf", "patternProperties", "propertyNames",
        "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    }  # fmt: skip


def test_keywords_that_are_not_enforced_are_listed_with_their_places() -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"type": "array", "uniqueItems": True, "items": {"not": {"const": 1}}}},
        "$defs": {"a/b": {"pattern": "(?=x)y"}},
    }
    assert [str(note) for note in JsonSchema(json.dumps(schema)).notes] == [
        "uniqueItems at /properties/not is not enforced",
        "not at /properties/not/items is not enforced",
        "pattern '(?=x)y' at /$defs/a~1b is not enforced",
    ]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "nsatisfiable"),
        ({"$ref": "#/$defs/none"}, "none"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "'a' is unsatisfiable"),
    ],
    ids=str,
)
def test_errors_show_no_grammar(schema: Any, reason: str) -> None:
    with pytest.raises(TrigraphError, match=reason) as caught:
        JsonSchema(json.dumps(schema))
    assert "start:" not in str(caught.value)
    assert len(str(caught.value)) < 600


_A, _B = {"a": {"type": "integer"}}, {"b": {"type": "integer"}}
_BOTH = '{"a":1,"b":2}'


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"properties": _A}, False),
        ({"properties": _A, "additionalProperties": True}, True),
        ({"properties": _A, "additionalProperties": {"type": "integer"}}, True),
        ({"type": "object"}, True),
        ({"properties": {}}, False),
        ({"properties": _A, "propertyNames": {"maxLength": 3}}, True),
        ({"properties": _A, "minProperties": 2}, True),
        ({"properties": _A, "required": ["a", "b"]}, True),
        ({"allOf": [{"properties": _A}, {"properties": _B}]}, True),
        ({"allOf": [{"properties": _A}]}, False),
        ({"properties": _A, "anyOf": [{"properties": _B}, {"required": ["a"]}]}, True),
        ({"anyOf": [{"type": "object", "properties": _A}, {"type": "boolean"}]}, False),
        ({"$defs": {"A": {"properties": _A}}, "$ref": "#/$defs/A"}, False),
        ({"$defs": {"A": {"properties": _A}}, "allOf": [{"$ref": "#/$defs/A"}, {"properties": _B}]}, True),
        ({"$defs": {"A": {"allOf": [{"properties": _A}]}}, "$ref": "#/$defs/A", "properties": _B}, True),
    ],
    ids=str,
)
def test_objects_have_the_properties_that_they_list(schema: Any, kept: bool) -> None:
    typed = {"type": "object", **schema} if "anyOf" not in schema else schema
    assert accepts(guide_of(typed), "{}" if schema.get("properties") == {} else '{"a":1}') or "required" in schema
    assert accepts(guide_of(typed), _BOTH) == kept


def test_many_optional_properties_are_refused_in_words() -> None:
    def schema(count: int) -> dict[str, Any]:
        return {"items": {"properties": {f"name{i}": {"type": "integer"} for i in range(count)}, "required": ["name0"]}}

    assert accepts(guide_of({"type": "array", **schema(241)}), '[{"name0":1,"name240":2}]')
    with pytest.raises(TrigraphError, match="the object at /items has 241 optional properties, and at most 240 can be"):
        JsonSchema(json.dumps(schema(242)))
