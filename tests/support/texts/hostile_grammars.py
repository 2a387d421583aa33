"""Schemas and grammars whose compilation overflows the stack of whoever tries it."""

from __future__ import annotations

import json
from typing import Any

LONG = 1500
# How a schema says of another one that it stands within.
WITHIN: dict[str, Any] = {
    "items": lambda inner: {"items": inner},
    "additionalProperties": lambda inner: {"additionalProperties": inner},
    "prefixItems": lambda inner: {"prefixItems": [inner]},
    "allOf": lambda inner: {"allOf": [inner]},
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "oneOf": lambda inner: {"oneOf": [inner, {"type": "null"}]},
    "properties": lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]},
    "$ref": lambda inner: inner,
}


def chain(keyword: str, links: int = LONG) -> dict[str, Any]:
    """A schema of definitions each of which is within the one before."""
    wrap = WITHIN[keyword]
    definitions = {str(i): wrap({"$ref": f"#/$defs/{i + 1}"}) for i in range(links)}
    return {"$defs": {**definitions, str(links): {}}, "$ref": "#/$defs/0"}


def fan(keyword: str, links: int = LONG) -> dict[str, Any]:
    """The same, and all definitions can be reached with one step besides."""
    schema = chain(keyword, links)
    return {"$defs": schema["$defs"], "anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(links)]}


def rules(links: int, name: str = "r", rest: str = "", sign: str = ":") -> str:
    """A grammar of rules, or terminals, that stand each for the next one."""
    root = "start" if sign == ":" else "root"
    lines = [f"{root}{sign} {name}0", *(f"{name}{i}{sign} {name}{i + 1}{rest}" for i in range(links))]
    return "\n".join([*lines, f'{name}{links}{sign} "a"', ""])


GRAMMARS = {
    "rules": rules(4000),
    "terminals": rules(4000, "R"),
    "GBNF": rules(4000, sign=" ::="),
    "%json": f"start: %json {json.dumps(chain('items'))}",
    "%json within reach": f"start: %json {json.dumps(fan('items'))}",
}
