"""What of a JSON schema a grammar can enforce, and a list of the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from trigraph.models.errors import quote
from trigraph.runtime.sampling.closed_objects import ClosedObjects
from trigraph.runtime.sampling.guidance import library, verdict
from trigraph.runtime.sampling.references import check_references
from trigraph.runtime.sampling.text_formats import FORMATS
from trigraph.runtime.sampling.trial import SECONDS
from trigraph.runtime.text.tool_arguments import resolved

_DEPTH = 100
# These take a time that grows with their square, and with the cube.
_MOST_NAMES, _MOST_PATTERNS = 4000, 100
_MOST_OPTIONAL = 240  # of one object: each may come next, and that takes four of `guidance.limits`' items in a row
_OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_OF_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_OF_ONE = frozenset({"items", "additionalItems", "additionalProperties"})
# Keywords that no grammar enforces, each with values that ask for nothing.
_NOT_ENFORCED: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "if": (),
    "contains": (),
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
_WITHOUT_EFFECT = frozenset(
    {"then", "else", "minContains", "maxContains", "deprecated", "contentSchema", "$vocabulary"}
    | {"$dynamicAnchor", "$recursiveAnchor", "discriminator", "x-guidance"}
)
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "$dynamicRef", "contains"})


class Note(NamedTuple):
    """A keyword that is not enforced, and where it stands in the schema, as a JSON pointer."""

    place: str
    keyword: str
    reason: str = "is not enforced"
    annotation: bool = False
    """Whether JSON Schema itself asks for no more."""

    def __str__(self) -> str:
        return f"{self.keyword} at {self.place or 'the top of the schema'} {self.reason}"


class Enforced(NamedTuple):
    """A schema that llguidance takes, with options for it, and what was left out of it."""

    schema: dict[str, Any]
    options: dict[str, Any]
    notes: tuple[Note, ...]


def enforced(schema: Mapping[str, Any], options: Mapping[str, Any] = MappingProxyType({})) -> Enforced:
    """The part of a schema that can be enforced, with these `options` and more.

    Raises ValueError when none can: it is wrong, or nothing fits it.
    """
    relaxation = _Relaxation(schema)
    schema_enforced = relaxation.relaxed(schema, "")
    assert isinstance(schema_enforced, dict)
    check_references(schema_enforced)
    error = verdict(grammar_of(schema_enforced, options)).message
    if error is None:
        return Enforced(schema_enforced, {**options}, tuple(relaxation.notes))
    options = {**options, "coerce_one_of": True}
    if "oneOf" not in error or (error := verdict(grammar_of(schema_enforced, options)).message) is not None:
        raise ValueError(error)
    note = Note("", "oneOf", "may be kept to by more than one alternative")
    return Enforced(schema_enforced, options, (*relaxation.notes, note))


def grammar_of(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """A schema as llguidance reads it."""
    return str(library().LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=dict(options)))


class _Relaxation:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.notes: list[Note] = []
        self._root = root
        self._closed = ClosedObjects(root)
        self._names = self._patterns = 0
        self._seconds = 0.0

    def relaxed(self, schema: Any, place: str, depth: int = 0) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        if depth > _DEPTH:
            raise ValueError(f"it is nested more than {_DEPTH} deep")
        self._count_names(schema, place)
        closed = {"additionalProperties": False} if schema in self._closed else {}
        rewritten = self._rewritten({**schema, **closed}, place)
        return {key: self._below(key, value, f"{place}/{key}", depth + 1) for key, value in rewritten.items()}

    def _count_names(self, schema: Mapping[str, Any], place: str) -> None:
        names, patterns = schema.get("propertyNames"), schema.get("patternProperties")
        listed = [
            schema.get("properties"),
            schema.get("required"),
            names.get("enum") if isinstance(names, Mapping) else 0,
        ]
        self._names += sum(len(found) for found in listed if isinstance(found, Mapping | list))
        self._patterns += len(patterns) if isinstance(patterns, Mapping) else 0
        if self._names > _MOST_NAMES:
            raise ValueError(f"it names more than {_MOST_NAMES:,} properties")
        if self._patterns > _MOST_PATTERNS:
            raise ValueError(f"patternProperties has more than {_MOST_PATTERNS} patterns in all")
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, Mapping):
            optional = properties.keys() - {name for name in _list(required) if isinstance(name, str)}
            if len(optional) > _MOST_OPTIONAL:
                raise ValueError(
                    f"the object at {place or 'the top'} has {len(optional)} optional properties, and at most "
                    f"{_MOST_OPTIONAL} can be; list more of them in required, or put some into an object of their own"
                )

    def _below(self, key: str, value: Any, place: str, depth: int) -> Any:
        if key in _OF_NAMES and isinstance(value, Mapping):
            return {name: self.relaxed(part, f"{place}/{_escaped(name)}", depth) for name, part in value.items()}
        if key in _OF_LISTS and isinstance(value, list):
            return [self.relaxed(part, f"{place}/{i}", depth) for i, part in enumerate(value)]
        return self.relaxed(value, place, depth) if key in _OF_ONE else value

    def _rewritten(self, schema: dict[str, Any], place: str) -> dict[str, Any]:
        """The schema with other keywords for some, and without those that cannot be enforced."""
        self._unevaluated(schema)
        self._property_names(schema)
        self._format(schema, place)
        if isinstance(options := schema.get("oneOf"), list) and self._disjoint(options):
            schema = {"anyOf" if key == "oneOf" and "anyOf" not in schema else key: schema[key] for key in schema}
        for key in [*schema]:
            if key in _WITHOUT_EFFECT:
                del schema[key]
            elif key in _NOT_ENFORCED and (value := schema.pop(key)) not in _NOT_ENFORCED[key]:
                self._note(place, key, value)
        if "pattern" in schema and self._refused("string", pattern=schema["pattern"]):
            self._note(place, "pattern", schema.pop("pattern"))
        if "multipleOf" in schema and self._refused("number", multipleOf=schema["multipleOf"]):
            self._note(place, "multipleOf", schema.pop("multipleOf"))
        self._properties(schema, place)
        return schema

    def _note(self, place: str, key: str, value: Any) -> None:
        shown = quote(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
        self.notes.append(Note(place, f"{key} {shown}".strip()))

    def _unevaluated(self, schema: dict[str, Any]) -> None:
        """Where nothing else evaluates properties or items, those that are not evaluated are the additional ones."""
        if not _IN_PLACE & schema.keys():
            for key, plainer in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
                if key in schema:
                    schema.setdefault(plainer, schema[key])
                    del schema[key]

    def _property_names(self, schema: dict[str, Any]) -> None:
        """Names that are listed, or match a pattern, become properties, the additional ones of the same schema."""
        names = schema.get("propertyNames")
        if isinstance(names, Mapping) and isinstance(names.get("$ref"), str) and len(names) == 1:
            names = resolved(names["$ref"], self._root)
        if not isinstance(names, Mapping) or {"properties", "patternProperties"} & schema.keys():
            return
        meant = names.keys() - {"type", "title", "description"}
        value = schema.get("additionalProperties", True)
        if names.get("type", "string") != "string":
            return
        if meant in ({"enum"}, {"const"}):
            listed = names.get("enum", [names.get("const")])
            if not (isinstance(listed, list) and all(isinstance(name, str) for name in listed)):
                return
            schema["properties"] = dict.fromkeys(listed, value)
        elif meant == {"pattern"} and isinstance(names["pattern"], str):
            schema["patternProperties"] = {names["pattern"]: value}
        elif meant:
            return
        if meant:
            schema["additionalProperties"] = False
        del schema["propertyNames"]

    def _format(self, schema: dict[str, Any], place: str) -> None:
        name = schema.get("format")
        if not isinstance(name, str):
            return
        del schema["format"]
        if name not in FORMATS:
            self.notes.append(Note(place, f"format {quote(name)}", "is an annotation", annotation=True))
        elif "pattern" not in schema:
            schema["pattern"] = f"^({FORMATS[name]})$"
        else:
            more = schema.get("allOf")
            schema["allOf"] = [*(more if isinstance(more, list) else []), {"pattern": f"^({FORMATS[name]})$"}]

    def _properties(self, schema: dict[str, Any], place: str) -> None:
        patterns = schema.get("patternProperties")
        if isinstance(patterns, Mapping) and self._refused("object", patternProperties=dict.fromkeys(patterns, True)):
            self._note(place, "patternProperties", schema.pop("patternProperties"))
            schema.pop("additionalProperties", None)
        bounds = {key: schema[key] for key in ("minProperties", "maxProperties") if key in schema}
        if bounds:
            known = schema.get("properties")
            alone = {"properties": dict.fromkeys(known, True)} if isinstance(known, Mapping) else {}
            if isinstance(schema.get("required"), list):
                alone["required"] = schema["required"]
            if self._refused("object", **alone, **bounds):
                for key, value in bounds.items():
                    self._note(place, key, value)
                    del schema[key]

    def _refused(self, kind: str, **keywords: Any) -> bool:
        """Whether llguidance refuses the schema for what it is, and not as nothing fits it."""
        message, seconds, tried = verdict(grammar_of({"type": kind, **keywords}, {}), whole=False)
        if not tried:
            raise ValueError(message)
        self._seconds += seconds
        if self._seconds > SECONDS:
            raise ValueError(f"its patterns take more than {SECONDS:g} seconds to compile; make them simpler, or fewer")
        return message is not None and "nsatisfiable" not in message

    def _disjoint(self, options: Sequence[Any]) -> bool:
        """Whether types, or a property that all require, tell the options apart, so that one of them at most fits."""
        resolved = [_resolved_option(option, self._root) for option in options]
        if not all(isinstance(option, Mapping) for option in resolved):
            return False
        types = [option.get("type") for option in resolved]
        if all(isinstance(name, str) for name in types) and len({*types}) == len(types):
            return not {"integer", "number"} <= {*types}
        required = [option.get("required") for option in resolved]
        names = required[0] if required and all(isinstance(names, list) for names in required) else []
        return any(all(name in others for others in required) and _tells(name, resolved) for name in names)


def _resolved_option(option: Any, root: Mapping[str, Any]) -> Any:
    reference = option.get("$ref") if isinstance(option, Mapping) else None
    return resolved(reference, root) if isinstance(reference, str) else option


def _tells(name: Any, options: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the constants that the options have for the property `name` are different."""
    values: list[str] = []
    for option in options:
        properties = option.get("properties")
        schema = properties.get(name) if isinstance(properties, Mapping) else None
        if not isinstance(schema, Mapping):
            return False
        own = [schema["const"]] if "const" in schema else schema.get("enum")
        if not (isinstance(own, list) and own and all(isinstance(value, str) for value in own)):
            return False
        values += {*own}
    return len({*values}) == len(values)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
