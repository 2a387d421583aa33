"""The description of the API: what the bodies of requests hold. They are read as bytes, so FastAPI does not see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from trigraph.runtime.server.schema import Schema


def describe(app: FastAPI, bodies: Mapping[str, type[Schema]]) -> None:
    """Adds the schemas of request bodies, by path, to the description that `app` gives."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app, bodies)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _description(app: FastAPI, bodies: Mapping[str, type[Schema]]) -> dict[str, Any]:
    description = get_openapi(title=app.title, version=app.version, routes=app.routes)
    references, definitions = models_json_schema(
        [(schema, "validation") for schema in bodies.values()], ref_template="#/components/schemas/{model}"
    )
    description.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    for path, schema in bodies.items():
        content = {"application/json": {"schema": references[schema, "validation"]}}
        operation = description["paths"][path]["post"]
        operation["requestBody"] = {"required": True, "content": content}
        operation["responses"]["4XX"] = {"description": "What is wrong with the request"}
    return description
