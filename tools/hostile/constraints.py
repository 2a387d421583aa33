"""Schemas and grammars that are made to take long, or to be too deep."""

from __future__ import annotations

import json
import random
from typing import Any

from hostile.attempt import Attempt, posted

_PATTERNS = ("(a|a)*b" * 30, "(x{1,500}){1,500}", "(((((a*)*)*)*)*)*c", "^(?:.{0,9999}y){99}$")


def chain(count: int, keyword: str) -> dict[str, Any]:
    """A schema whose references lead from one to the next."""

    def holder(reference: dict[str, Any]) -> dict[str, Any]:
        if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            return {keyword: [reference]}
        return {keyword: {"a": reference}} if keyword == "properties" else {keyword: reference}

    definitions: dict[str, Any] = {str(i): holder({"$ref": f"#/$defs/{i + 1}"}) for i in range(count)}
    return {"$defs": {**definitions, str(count): {}}, "$ref": "#/$defs/0"}


def schema(rng: random.Random) -> Attempt:
    """JSON schemas that are long chains, wide, ambiguous, or have regular expressions to match."""
    keywords = ("items", "additionalProperties", "prefixItems", "allOf", "anyOf", "oneOf", "properties")
    found = rng.choice((
        lambda: chain(rng.choice((30, 1500, 5000)), rng.choice(keywords)),
        lambda: {"enum": [f"{i} {'x' * 20}" for i in range(rng.choice((100, 15_000)))]},
        lambda: {"type": "string", "pattern": rng.choice(_PATTERNS)},
        lambda: {"properties": {f"p{i}": {"type": "string", "maxLength": 10**9} for i in range(3000)}},
        lambda: {"$ref": "#"}, lambda: {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 50}}, "$ref": "#/$defs/a"},
        lambda: {"type": "array", "minItems": 10**7, "items": {"type": "integer"}},
        lambda: {"not": {"not": {"type": "object"}}, "if": {}, "then": {"const": {"a": [None] * 1000}}},
    ))()  # fmt: skip
    said = [{"role": "user", "content": "a"}]
    body: dict[str, Any] = {"messages": said, "max_tokens": 4}
    if rng.random() < 0.5:
        given = {"type": "json_schema", "json_schema": {"name": "x", "schema": found}}
        return posted("/v1/chat/completions", {**body, "response_format": given})
    if rng.random() < 0.5:
        return posted("/completion", {"prompt": "a", "n_predict": 4, "json_schema": found})
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": found}}}}
    return posted("/v1/chat/completions", {**body, "tools": [tool], "tool_choice": "required"})


def grammar(rng: random.Random) -> Attempt:
    """Grammars that are long chains, recursive from both sides, or match nothing."""
    count = rng.choice((50, 4000))
    text = rng.choice((
        'start: s\ns: s s s | s s | "" | /[^x]/',
        "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(count)) + f'r{count}: "a"\n',
        "start: T0\n" + "".join(f"T{i}: T{i + 1}\n" for i in range(count)) + f'T{count}: "a"\n',
        'start: "a"{1,100000}', "start: " + "(" * 3000 + '"a"' + ")" * 3000, "start: x\nx: x", "start:",
        "root ::= root root | root",
        "root ::= " + " | ".join(f'"{i}"' for i in range(count)), "start: %json " + json.dumps(chain(count, "items")),
        "start: /" + "(a?){60}" * 20 + "a{60}/",
    ))  # fmt: skip
    return posted("/completion", {"prompt": "a", "n_predict": 4, "grammar": text})
