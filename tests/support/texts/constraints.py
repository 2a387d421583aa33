"""Constraints of every kind, and whether a text keeps to one, told by other means than llguidance."""

import json
import random
import re
from collections.abc import Sequence
from datetime import date
from typing import Any

from support.fakes.engine import END
from trigraph.runtime import Grammar, JsonSchema, Regex
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.guide import Guide, wait_for_any

WORD = {"type": "string", "pattern": "^[a-z]{1,12}$"}
NAME = {"type": "string", "minLength": 1, "maxLength": 12}
AGE = {"type": "integer", "minimum": 0, "maximum": 130}
PERSON = {
    "type": "object",
    "properties": {"name": NAME, "age": AGE},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "boolean"},
    AGE,
    {"type": "null"},
    WORD,
    {"enum": ["bread", "wine", 7, None]},
    {"const": {"verse": 1, "text": "In the beginning"}},
    {"type": "string", "format": "date"},
    PERSON,
    {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 8},
    {"anyOf": [PERSON, {"type": "boolean"}, WORD]},
    {
        "type": "object",
        "properties": {"king": {"$ref": "#/$defs/person"}, "sons": {"type": "array", "maxItems": 2, "items": WORD}},
        "required": ["king"],
        "additionalProperties": False,
        "$defs": {"person": PERSON},
    },
)
REGEXES = (
    "yes|no",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"And (he|she) said unto (him|her|them), [A-Z][a-z]{2,9}\.",
    r"(The [a-z]{3,8} of the [a-z]{3,8}[,;] ){2}selah",
    "(a|b)*c?",
    "日本(語|国)|Ωmega|naïve",
    r"[A-Z][a-z]+( [a-z]+){1,5}\.",
)
GBNF = 'root ::= "[" item ("," item){0,4} "]"\nitem ::= [0-9]{1,3} | "(" item ")"'
LARK = 'start: verb " " noun ("." | "!")\nverb: "Go" | "Come"\nnoun: /[a-z]{2,9}/'
CONSTRAINTS: tuple[Constraint, ...] = (
    *(JsonSchema(json.dumps(schema)) for schema in SCHEMAS),
    *map(Regex, REGEXES),
    Grammar(GBNF),
    Grammar(LARK),
)


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Whether `value` is what the keywords used here describe."""
    if "anyOf" in schema:
        return any(conforms(value, option) for option in schema["anyOf"])
    if "$ref" in schema:
        return conforms(value, PERSON)
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return bool(value == schema["const"])
    if schema["type"] == "object":
        properties = schema["properties"]
        known = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(properties)
        return known and all(conforms(item, properties[key]) for key, item in value.items())
    if schema["type"] == "array":
        length = schema.get("minItems", 0) <= len(value) <= schema["maxItems"]
        return length and all(conforms(item, schema["items"]) for item in value)
    if "format" in schema:
        return bool(date.fromisoformat(value))
    if schema["type"] == "string":
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 99) and (
            re.search(schema.get("pattern", ""), value) is not None
        )
    if schema["type"] == "integer":
        return isinstance(value, int) and schema["minimum"] <= value <= schema["maximum"]
    return value is None if schema["type"] == "null" else isinstance(value, bool)


def keeps_to(text: str, constraint: Constraint) -> bool:
    """Whether `text` is what the constraint says."""
    if isinstance(constraint, JsonSchema):
        return conforms(json.loads(text), json.loads(constraint.schema))
    if isinstance(constraint, Regex):
        return re.fullmatch(constraint.pattern, text) is not None
    if constraint == Grammar(GBNF):
        plain = re.sub(r"[()]", "", text)
        return text.count("(") == text.count(")") and re.fullmatch(r"\[\d{1,3}(,\d{1,3}){0,4}\]", plain) is not None
    return re.fullmatch("(Go|Come) [a-z]{2,9}[.!]", text) is not None


def random_text(guide: Guide, seed: int, most: int = 2000, tags: Sequence[bytes] = ()) -> str:
    """A text that the guide of an engine with a token for each byte lets through; it comes to its end soon.

    `tags`: what ends a part of the text, taken as a whole now and then.
    """
    rng, text = random.Random(seed), bytearray()
    while not guide.finished and len(text) < most:
        tag = rng.choice(tags) if tags and rng.random() < 0.4 else b""
        if tag and guide._matcher.validate_tokens([*tag]) == len(tag):
            for token in tag:
                guide.advance(token)
            text += tag
            continue
        guide.start()
        wait_for_any([guide], 60)
        allowed = [int(token) for token in guide.allowed()]
        ends = [token for token in allowed if token == END or chr(token) in '"}]\n</>']
        plain = [token for token in allowed if 32 <= token < 127]
        token = rng.choice(ends if ends and rng.random() < 0.2 + len(text) / 500 else plain or allowed)
        if token == END:
            break
        guide.advance(token)
        text.append(token)
    return text.decode()


def accepts(guide: Guide, text: str) -> bool:
    """Whether the whole text may be what a guide of such an engine lets through."""
    for token in text.encode():
        wait_for_any([guide], 60)
        if not guide.allows(token):
            return False
        guide.advance(token)
    return guide.finished or guide.allows(END)
