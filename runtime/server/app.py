"""The routes of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from trigraph.runtime.server.anthropic.messages import Messages, count_tokens
from trigraph.runtime.server.anthropic.schema import MessagesRequest, TokensRequest
from trigraph.runtime.server.errors import ApiError, explained
from trigraph.runtime.server.exchange import Job, answer, look_up
from trigraph.runtime.server.llama.completion import infill, native_completion
from trigraph.runtime.server.llama.embeddings import NativeEmbeddingRequest, NativeEmbeddings
from trigraph.runtime.server.llama.info import apply_template, brief, props, slots
from trigraph.runtime.server.llama.schema import InfillRequest, NativeCompletionRequest, TemplateRequest
from trigraph.runtime.server.metrics import CONTENT_TYPE
from trigraph.runtime.server.openai.chat_completions import ChatCompletion, count_chat_tokens
from trigraph.runtime.server.openai.completions import Completion
from trigraph.runtime.server.openai.embeddings import EmbeddingRequest, Embeddings
from trigraph.runtime.server.openai.responses import Responses, count_input_tokens
from trigraph.runtime.server.openai.schema import ChatRequest, CompletionRequest
from trigraph.runtime.server.openai.schema_responses import ResponsesRequest
from trigraph.runtime.server.openapi import describe
from trigraph.runtime.server.page import FOLDER, Page
from trigraph.runtime.server.queries import DetokenizeRequest, TokenizeRequest, detokenize, tokenize, tokenizer_info
from trigraph.runtime.server.schema import Schema
from trigraph.runtime.server.security import Security
from trigraph.runtime.server.service import Served, Service

_JOBS: dict[str, tuple[Callable[[Service, bytes], Job], type[Schema]]] = {
    "/v1/chat/completions": (ChatCompletion, ChatRequest),
    "/v1/completions": (Completion, CompletionRequest),
    "/v1/responses": (Responses, ResponsesRequest),
    "/v1/messages": (Messages, MessagesRequest),
    "/v1/embeddings": (Embeddings, EmbeddingRequest),
    "/completion": (native_completion, NativeCompletionRequest),
    "/infill": (infill, InfillRequest),
    "/embedding": (NativeEmbeddings, NativeEmbeddingRequest),
}
_LOOK_UPS: dict[str, tuple[Callable[[Service, bytes], dict[str, Any]], type[Schema]]] = {
    "/v1/chat/completions/input_tokens": (count_chat_tokens, ChatRequest),
    "/v1/messages/count_tokens": (count_tokens, TokensRequest),
    "/v1/responses/input_tokens": (count_input_tokens, ResponsesRequest),
    "/apply-template": (apply_template, TemplateRequest),
    "/tokenize": (tokenize, TokenizeRequest),
    "/detokenize": (detokenize, DetokenizeRequest),
}
# llama-server has OpenAI's without /v1, too, but for /completions and /embeddings: those are its own.
_ALIASES = {
    "/chat/completions": "/v1/chat/completions",
    "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
    "/responses": "/v1/responses",
    "/responses/input_tokens": "/v1/responses/input_tokens",
    "/completions": "/completion",
    "/embeddings": "/embedding",
    "/models": "/v1/models",
    "/v1/health": "/health",
}


def make_app(served: Served) -> FastAPI:
    """The server's application, for any ASGI server."""
    app = FastAPI(title="trigraph", docs_url=None, redoc_url=None)
    settings = served.settings
    app.add_middleware(Security, settings=settings, guarded=_GUARDED)
    if settings.origins is not None:
        app.add_middleware(
            CORSMiddleware,
            allow_origin_regex=settings.origins.pattern,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
        )
    app.add_exception_handler(Exception, _respond_to_error)
    app.add_exception_handler(ApiError, _respond_to_error)
    app.add_exception_handler(HTTPException, _respond_to_error)
    for path, (make, _) in _JOBS.items():
        app.add_api_route(path, _job(served, make), methods=["POST"])
    for path, (function, _) in _LOOK_UPS.items():
        app.add_api_route(path, _look_up(served, function), methods=["POST"])
    for path, (make_answer, methods) in _QUESTIONS.items():
        for method in methods:
            app.add_api_route(path, make_answer(served), methods=[method])
    routes = {route.path: route for route in app.routes if isinstance(route, APIRoute)}
    for alias, path in _ALIASES.items():  # the description has each once
        app.add_api_route(
            alias, routes[path].endpoint, methods=list(routes[path].methods or ()), include_in_schema=False
        )
    if FOLDER.is_dir():
        app.router.default = Page()  # not a mount: that would take requests with a wrong method from other routes
    describe(app, {path: schema for path, (_, schema) in (_JOBS | _LOOK_UPS).items()})
    return app


def _job(served: Served, make: Callable[[Service, bytes], Job]) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def endpoint(request: HttpRequest) -> Response:
        return await answer(served, request, make)

    endpoint.__name__ = make.__name__
    return endpoint


def _look_up(
    served: Served, function: Callable[[Service, bytes], dict[str, Any]]
) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def endpoint(request: HttpRequest) -> Response:
        return await look_up(served, request, function)

    endpoint.__name__ = function.__name__
    return endpoint


def _health(served: Served) -> Callable[[], Awaitable[Response]]:
    async def health() -> Response:
        if served.draining:
            return JSONResponse({"status": "draining"}, 503)
        if (outage := await served.outage()) is not None:
            return JSONResponse({"status": outage}, 503)
        return JSONResponse({"status": "ok"})

    return health


def _metrics(served: Served) -> Callable[[], Awaitable[Response]]:
    async def metrics() -> Response:
        return Response(served.metrics_text(), media_type=CONTENT_TYPE)

    return metrics


def _models(served: Served) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def models() -> dict[str, Any]:
        found = served.described()
        return {
            "object": "list",
            "data": found,
            "models": [brief(model) for model in found],
            "first_id": found[0]["id"],
            "last_id": found[-1]["id"],
            "has_more": False,
        }

    return models


def _model(served: Served) -> Callable[[str], Awaitable[dict[str, Any]]]:
    async def model(model: str) -> dict[str, Any]:
        return served.described_as(model)

    return model


def _version(served: Served) -> Callable[[], Awaitable[dict[str, str]]]:
    async def version() -> dict[str, str]:
        return {"version": served.version}

    return version


def _value(function: Callable[[Service], Any]) -> Callable[[Served], Callable[..., Awaitable[Any]]]:
    """Makes a route of a function of a model's service; the query may name the model."""

    def of(served: Served) -> Callable[..., Awaitable[Any]]:
        async def endpoint(model: str | None = None) -> Any:
            service = await served.named(model)
            try:
                return function(service)
            finally:
                served.left(service, used=False)

        endpoint.__name__ = function.__name__
        return endpoint

    return of


_QUESTIONS: dict[str, tuple[Callable[[Served], Callable[..., Awaitable[Any]]], list[str]]] = {
    "/metrics": (_metrics, ["GET"]),
    "/health": (_health, ["GET"]),
    "/ping": (_health, ["GET", "POST"]),
    "/v1/models": (_models, ["GET"]),
    "/v1/models/{model:path}": (_model, ["GET"]),
    "/props": (_value(props), ["GET"]),
    "/slots": (_value(slots), ["GET"]),
    "/tokenizer_info": (_value(tokenizer_info), ["GET"]),
    "/version": (_version, ["GET"]),
}
_PUBLIC = {"/health", "/v1/health", "/ping"}
_GUARDED = {*_JOBS, *_LOOK_UPS, *_QUESTIONS, *_ALIASES, "/openapi.json"} - _PUBLIC


async def _respond_to_error(request: HttpRequest, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        error = ApiError(f"{request.method} {request.url.path}: {error.detail.lower()}", error.status_code)
    told = explained(error)
    return JSONResponse(told.body(request.url.path), told.status, headers={**told.headers, **headers})
