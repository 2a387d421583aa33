"""Which objects of a JSON schema have the listed properties alone.

JSON Schema leaves an object open unless `additionalProperties` closes it, and few people write that: llama.cpp closes
an object that lists its `properties`, and so does trigraph. `additionalProperties: true` opens it. Objects stay open
to which other parts of the schema may add properties: the parts of an `allOf`, or options beside `properties`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trigraph.runtime.text.tool_arguments import resolved

_SAYS_MORE = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames", "if", "dependentSchemas", "$dynamicRef"}
)


class ClosedObjects:
    """Tells which schemas within `root` have no properties but those that they list."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open: set[int] = set()
        waiting: list[Any] = [root]
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, list | Mapping):
                waiting += schema.values() if isinstance(schema, Mapping) else schema
            if isinstance(schema, Mapping):
                groups = [*self._beside(schema)]
                if len(groups) + ("properties" in schema) > 1:
                    self._keep_open([part for group in groups for part in group])

    def __contains__(self, schema: Mapping[str, Any]) -> bool:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping) or _SAYS_MORE & schema.keys() or id(schema) in self._open:
            return False
        if any(True for _ in self._beside(schema)):
            return False
        least = schema.get("minProperties", 0)
        unlisted = isinstance(required, list) and any(name not in properties for name in required)
        return not unlisted and isinstance(least, int) and least <= len(properties)

    def _keep_open(self, schemas: list[Any]) -> None:
        while schemas:
            schema = schemas.pop()
            if isinstance(schema, Mapping) and id(schema) not in self._open:
                self._open.add(id(schema))
                schemas += [part for group in self._beside(schema) for part in group]

    def _beside(self, schema: Mapping[str, Any]) -> Iterator[list[Any]]:
        """What else describes the schema's value, in groups of which one part applies."""
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list):
                yield options
        parts = schema.get("allOf")
        yield from ([part] for part in (parts if isinstance(parts, list) else []))
        if isinstance(reference := schema.get("$ref"), str):
            yield [resolved(reference, self._root)]
