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

from trigraph.runtime import __version__
from trigraph.runtime.server.answer import answer, look_up
from trigraph.runtime.server.anthropic.messages import Messages, count_tokens
from trigraph.runtime.server.anthropic.schema import MessagesRequest, TokensRequest
from trigraph.runtime.server.app import App, ServedModel
from trigraph.runtime.server.errors import ApiError, explained
from trigraph.runtime.server.job import Job
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

_JOBS: dict[str, tuple[Callable[[ServedModel, bytes], Job], type[Schema]]] = {
    "/v1/chat/completions": (ChatCompletion, ChatRequest),
    "/v1/completions": (Completion, CompletionRequest),
    "/v1/responses": (Responses, ResponsesRequest),
    "/v1/messages": (Messages, MessagesRequest),
    "/v1/embeddings": (Embeddings, EmbeddingRequest),
    "/completion": (native_completion, NativeCompletionRequest),
    "/infill": (infill, InfillRequest),
    "/embedding": (NativeEmbeddings, NativeEmbeddingRequest),
}
_LOOK_UPS: dict[str, tuple[Callable[[ServedModel, bytes], dict[str, Any]], type[Schema]]] = {
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
_PUBLIC = {"/health", "/v1/health", "/ping"}


def routes(app: App) -> FastAPI:
    """The application for an ASGI server."""
    api = FastAPI(title="trigraph", docs_url=None, redoc_url=None)
    settings, questions = app.settings, _questions(app)
    guarded = {*_JOBS, *_LOOK_UPS, *questions, *_ALIASES, "/openapi.json"} - _PUBLIC
    api.add_middleware(Security, settings=settings, guarded=guarded)
    if settings.origins is not None:
        api.add_middleware(
            CORSMiddleware,
            allow_origin_regex=settings.origins.pattern,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
        )
    api.add_exception_handler(Exception, _respond_to_error)
    api.add_exception_handler(ApiError, _respond_to_error)
    api.add_exception_handler(HTTPException, _respond_to_error)
    for path, (make, _) in _JOBS.items():
        api.add_api_route(path, _endpoint(app, answer, make), methods=["POST"])
    for path, (function, _) in _LOOK_UPS.items():
        api.add_api_route(path, _endpoint(app, look_up, function), methods=["POST"])
    for path, question in questions.items():
        for method in ("GET", "POST") if path == "/ping" else ("GET",):
            api.add_api_route(path, question, methods=[method])
    known = {route.path: route for route in api.routes if isinstance(route, APIRoute)}
    for alias, path in _ALIASES.items():  # the description has each once
        api.add_api_route(alias, known[path].endpoint, methods=list(known[path].methods or ()), include_in_schema=False)
    if FOLDER.is_dir():
        api.router.default = Page()  # not a mount: that would take requests with a wrong method from other routes
    describe(api, {path: schema for path, (_, schema) in (_JOBS | _LOOK_UPS).items()})
    return api


def _endpoint(
    app: App, respond: Callable[[App, HttpRequest, Any], Awaitable[Response]], make: Callable[[ServedModel, bytes], Any]
) -> Callable[[HttpRequest], Awaitable[Response]]:
    """A route of a function of a request's body."""

    async def endpoint(request: HttpRequest) -> Response:
        return await respond(app, request, make)

    endpoint.__name__ = make.__name__
    return endpoint


def _value(app: App, function: Callable[[ServedModel], Any]) -> Callable[..., Awaitable[Any]]:
    """A route of a function of a model; the query may name the model."""

    async def endpoint(model: str | None = None) -> Any:
        served = await app.named(model)
        try:
            return function(served)
        finally:
            app.left(served, used=False)

    endpoint.__name__ = function.__name__
    return endpoint


def _questions(app: App) -> dict[str, Callable[..., Awaitable[Any]]]:
    """The routes without a body."""

    async def health() -> Response:
        if app.draining:
            return JSONResponse({"status": "draining"}, 503)
        if (outage := await app.outage()) is not None:
            return JSONResponse({"status": outage}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics() -> Response:
        return Response(app.metrics_text(), media_type=CONTENT_TYPE)

    async def models() -> dict[str, Any]:
        listed = app.described()
        return {
            "object": "list",
            "data": listed,
            "models": [brief(model) for model in listed],
            "first_id": listed[0]["id"],
            "last_id": listed[-1]["id"],
            "has_more": False,
        }

    async def model(model: str) -> dict[str, Any]:
        return app.described_as(model)

    async def version() -> dict[str, str]:
        return {"version": __version__}

    values = {f"/{function.__name__}": _value(app, function) for function in (props, slots, tokenizer_info)}
    return {
        "/metrics": metrics,
        "/health": health,
        "/ping": health,
        "/v1/models": models,
        "/v1/models/{model:path}": model,
        **values,
        "/version": version,
    }


async def _respond_to_error(request: HttpRequest, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, HTTPException):
        headers = error.headers or {}
        error = ApiError(f"{request.method} {request.url.path}: {error.detail.lower()}", error.status_code)
    told = explained(error)
    return JSONResponse(told.body(request.url.path), told.status, headers={**told.headers, **headers})
