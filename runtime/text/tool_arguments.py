"""The tools of a request: schemas of their arguments, and plain text as the JSON value that a schema asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from trigraph.models.errors import TrigraphError, quote

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Templates write Python's spelling of these into the history.
_BOOLEANS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_NULLS = {"null", "None"}
_TYPE_OF = {type(None): "null", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def parameters_of(tools: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The JSON schema of each tool's arguments by the tool's name. Raises TrigraphError for what is no tool."""
    schemas = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise TrigraphError(f'{quote(tool)} is no tool; it must be like {{"function": {{"name": "get_weather"}}}}')
        schema = function.get("parameters")
        if not (schema is None or isinstance(schema, Mapping)):
            raise TrigraphError(f"the parameters of tool {quote(function['name'])} must be a JSON schema, an object")
        schemas[function["name"]] = schema or {}
    return schemas


def types_of(name: str, parameters: Mapping[str, Any]) -> set[str]:
    """JSON types that the argument `name` may have by a tool's schema; none where that does not say."""
    types: set[str] = set()
    waiting, seen = [_mapping(parameters.get("properties")).get(name)], set[int]()
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        named = schema.get("type")
        declared = [named] if isinstance(named, str) else _list(named)
        values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        types.update(declared or (_TYPE_OF.get(type(value), "string") for value in values))
        waiting += [part for key in ("anyOf", "oneOf", "allOf") for part in _list(schema.get(key))]
        if isinstance(reference := schema.get("$ref"), str):
            waiting.append(_resolved(reference, parameters))
    return types


def typed(text: str, types: set[str]) -> str:
    """The JSON of a value of one of these types: of the first in the order below that `text` can be, else a string."""
    bare = text.strip()
    if "null" in types and bare in _NULLS:
        return "null"
    if ("integer" in types and _INTEGER.fullmatch(bare)) or ("number" in types and _NUMBER.fullmatch(bare)):
        return bare
    if "boolean" in types and bare in _BOOLEANS:
        return _BOOLEANS[bare]
    if ("object" in types and bare.startswith("{")) or ("array" in types and bare.startswith("[")):
        try:
            json.loads(bare, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
        return bare
    return json.dumps(text, ensure_ascii=False)


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within the schema (`#/$defs/Name`) refers to; None when there is no such thing."""
    at: Any = root
    for key in reference.removeprefix("#").split("/")[1:]:
        at = _mapping(at).get(key.replace("~1", "/").replace("~0", "~"))
    return at


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
