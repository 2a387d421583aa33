"""Hostile grammars, expressions, schemas and tools: each is refused or followed, within a bound of work for each token.

Grammars are ambiguous, recursive and nested; expressions repeat repetitions; schemas are damaged, multiply references,
or list thousands of values.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from fuzz.damage import damage_json
from support.fakes.engine import END, engine_of, scripted
from support.texts.constraints import GBNF, LARK, REGEXES, SCHEMAS
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Grammar, JsonSchema, Regex
from trigraph.runtime.sampling.constraint import Constraint
from trigraph.runtime.sampling.guide import wait_for_any
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.reply_form import ToolChoice, reply_form
from trigraph.runtime.text.reply_parser import ReplyFormat

_TOKENS = 40
_ATOMS = ('"a"', '"ab"', '""', "/[^x]/", "/[a-z]+/", "/(?s:.*)/", "/(a|b)*c/", "/.{0,300}/", '"\\n"', "s", "t", "u")
_KEYWORDS: tuple[dict[str, Any], ...] = (
    {"uniqueItems": True},
    {"pattern": "(a+)+$"},
    {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"},
    {"pattern": "((a{1,99}){1,99}){1,99}"},
    {"pattern": "(?=x)"},
    {"maxLength": 10**9},
    {"minLength": 10**5},
    {"minItems": 10**6},
    {"format": "uri", "pattern": "a"},
    {"multipleOf": 1e-300},
    {"minimum": 1e308, "type": "number"},
    {"minProperties": 3},
    {"patternProperties": {"a": {}, "b": {"type": "null"}}},
    {"propertyNames": {"pattern": ".*"}},
    {"oneOf": [{}, {"type": "string"}]},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#/nowhere"}]},
    {"$ref": "#"},
    {"$ref": "https://example.org/"},
)


class Fuzzer:
    """A byte-level engine whose guides are walked through at random."""

    def __init__(self, folder: Path) -> None:
        self._engine, _ = engine_of(scripted(b"a", 1))

    def run(self, seed: int, case: int) -> str:
        """Make a constraint and follow it for some tokens."""
        rng = random.Random(f"{seed}:{case}")
        try:
            constraint = self._constraint(rng)
        except ApiError as error:
            raise TrigraphError(str(error)) from error
        guide = self._engine.model.guide(constraint)
        for _ in range(_TOKENS):
            if guide.finished:
                return "finished"
            guide.start()
            wait_for_any([guide], 60)
            allowed = [int(token) for token in guide.allowed()]
            token = rng.choice([token for token in allowed if token != END] or allowed)
            if token == END:
                return "finished"
            assert guide.allows(token)
            guide.advance(token)
        return "followed"

    def _constraint(self, rng: random.Random) -> Constraint:
        kind = rng.randrange(6)
        if kind == 0:
            return Grammar(_lark(rng))
        if kind == 1:
            return Grammar(_damaged(rng, rng.choice((GBNF, LARK))))
        if kind == 2:
            return Regex(_damaged(rng, rng.choice(REGEXES)) if rng.random() < 0.5 else _repeated(rng))
        schema = _schema(rng)
        if kind == 3:
            return JsonSchema(json.dumps(schema))
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": schema}}}}]
        if rng.random() < 0.3 and isinstance(schema, dict):
            tools[0]["function"]["parameters"] = schema  # type: ignore[index]
        strict = frozenset({"f"}) if rng.random() < 0.2 else frozenset[str]()
        choice = ToolChoice(tools, required=True, parallel=rng.random() < 0.5, strict=strict)
        form = reply_form(ReplyFormat(calls=rng.choice(("xml", "json"))), choice, None)
        assert form is not None
        return form


def _lark(rng: random.Random) -> str:
    rules = []
    for name in ("s", "t", "u"):
        options = [" ".join(rng.choices(_ATOMS, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 4))]
        body = " | ".join(options)
        rules.append(f"{name}: " + (f"({body}){rng.choice('*+?')}" if rng.random() < 0.3 else body))
    return "start: s\n" + "\n".join(rules)


def _repeated(rng: random.Random) -> str:
    text = rng.choice(("a", "[a-z]", ".", "(a|ab|b)", "\\w"))
    for _ in range(rng.randint(1, 6)):
        text = (
            f"({text}{rng.choice(('*', '+', '?', '{1,50}', '{100}', '{0,1000}'))}{rng.choice(('', 'b', '.*', '|c'))})"
        )
    return text


def _damaged(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(("*", "(", ")", "|", "::=", "\n", '"', "{9999}", "~", "&", "\0")) + text[at + 1 :]
    return text


def _schema(rng: random.Random) -> Any:
    match rng.randrange(6):
        case 0:
            many = rng.choice((10, 1000, 20_000))
            return {"enum": [f"value {i}" for i in range(many)]}
        case 1:
            depth = rng.choice((3, 20, 60))
            key = rng.choice(("anyOf", "allOf", "oneOf"))
            definitions: dict[str, Any] = {"d0": rng.choice(SCHEMAS)}
            for i in range(depth):
                definitions[f"d{i + 1}"] = {key: [{"$ref": f"#/$defs/d{i}"}] * 2, **rng.choice(_KEYWORDS)}
            return {"$ref": f"#/$defs/d{depth}", "$defs": definitions}
        case 2:
            schema: Any = rng.choice(SCHEMAS)
            for _ in range(rng.choice((1, 10, 99, 300))):
                schema = rng.choice(
                    ({"items": schema, "type": "array"}, {"not": schema}, {"properties": {"a": schema}})
                )
            return schema
        case _:
            schema = {**copy.deepcopy(rng.choice(SCHEMAS)), **rng.choice(_KEYWORDS), **rng.choice(_KEYWORDS)}
            return damage_json(rng, schema) if rng.random() < 0.5 else schema
