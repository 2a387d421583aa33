"""The tools of a request, and the schemas of their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trigraph.models.errors import TrigraphError, quote

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


@dataclass
class Arguments:
    """The arguments that a tool's schema describes at its top, references and parts of `allOf` and `anyOf` included."""

    schemas: dict[str, Any] = field(default_factory=dict)
    """By name, in the order of the schema."""
    required: set[str] = field(default_factory=set)
    exact: bool = True
    """Whether there are no alternatives, of which only the arguments stand here."""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Arguments:
        """The arguments of a tool with this JSON schema."""
        made = cls()
        waiting, seen = [(parameters, True)], set[int]()
        while waiting:
            schema, always = waiting.pop(0)
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            for name, value in _mapping(schema.get("properties")).items():
                both = "allOf" if always else "anyOf"
                made.schemas[name] = {both: [made.schemas[name], value]} if name in made.schemas else value
            if always:
                made.required.update(name for name in _list(schema.get("required")) if isinstance(name, str))
            waiting += [(part, always) for part in _list(schema.get("allOf"))]
            options = [part for key in ("anyOf", "oneOf") for part in _list(schema.get(key))]
            waiting += [(part, False) for part in options]
            made.exact = made.exact and not options
            if isinstance(reference := schema.get("$ref"), str):
                waiting.append((resolved(reference, parameters), always))
        return made


def types_of(argument: Any, parameters: Mapping[str, Any]) -> set[str]:
    """JSON types that an argument of this schema may have, a part of `parameters`; none where it does not say."""
    types: set[str] = set()
    waiting, seen = [argument], set[int]()
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        named = schema.get("type")
        declared = [kind for kind in (_list(named) or [named]) if isinstance(kind, str)]
        values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
        types.update(declared or (_TYPE_OF.get(type(value), "string") for value in values))
        waiting += [part for key in ("anyOf", "oneOf", "allOf") for part in _list(schema.get(key))]
        if isinstance(reference := schema.get("$ref"), str):
            waiting.append(resolved(reference, parameters))
    return types


def resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """The part of a schema that a reference (`#/$defs/Name`) names; None when there is no such part."""
    at: Any = root
    for key in reference.removeprefix("#").split("/")[1:]:
        at = _mapping(at).get(key.replace("~1", "/").replace("~0", "~"))
    return at


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
