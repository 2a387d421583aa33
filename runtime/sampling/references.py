"""How far the references of a JSON schema lead: a compiler follows each of them one call deeper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trigraph.runtime.text.tool_arguments import resolved

_DEPTH = 100
_NO_SCHEMAS = frozenset({"$defs", "definitions", "enum", "const", "default", "examples"})
_WITHIN_LARK = re.compile(r"%json\s*(?=\{)")


def check_references(schema: Mapping[str, Any]) -> None:
    """Raises ValueError when a part of the schema is reached by a long chain of references, and no shorter one."""
    followed: set[str] = set()
    seen: set[int] = set()
    reached: list[Any] = [schema]
    for _ in range(_DEPTH + 1):
        named = {name for part in reached for name in _references(part, seen)} - followed
        if not named:
            return
        followed |= named
        reached = [resolved(name, schema) for name in named]
    raise ValueError(f"its references lead from schema to schema more than {_DEPTH} deep")


def check_lark(text: str) -> None:
    """Raises ValueError for such a chain in a JSON schema of a Lark grammar."""
    for match in _WITHIN_LARK.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):  # which is the compiler's to name
            continue
        check_references(schema)


def _references(part: Any, seen: set[int]) -> Iterator[str]:
    """The references in a part of a schema, without those of definitions, and of parts that were `seen` before."""
    parts = [part]
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        if isinstance(part, list):
            parts += part
        elif isinstance(part, Mapping):
            seen.add(id(part))
            if isinstance(name := part.get("$ref"), str):
                yield name
            parts += [value for key, value in part.items() if key not in _NO_SCHEMAS]
