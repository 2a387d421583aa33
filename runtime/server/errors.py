"""What a client is told when its request fails, in the shape of its API."""

from __future__ import annotations

import logging
from typing import Any

from trigraph.models.errors import TrigraphError, one_line
from trigraph.runtime.sampling.semaphore import BusyError
from trigraph.runtime.scheduler.waiting import QueueFullError

log = logging.getLogger("trigraph.server")

_RETRY_SECONDS = "5"
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A request that is refused or has failed. `param`: the field at fault; `code`: a word for programs.

    Without another code, what is wrong with a request is an `invalid_value`.
    """

    def __init__(self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message := one_line(message))
        self.message = message
        self.status = status
        self.param = param
        self.code = code or ("invalid_value" if status == 400 else None)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        if self.status in (429, 503):
            return {"Retry-After": _RETRY_SECONDS}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}

    def body(self, path: str) -> dict[str, Any]:
        """The error as the API at `path` writes it."""
        if is_anthropic(path):
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        kind = _OPENAI_TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class PromptTooLongError(ApiError):
    """A prompt that is longer than the context, in the words that agents look for to shorten a conversation."""

    def __init__(self, tokens: int, context: int, *, param: str, more: bool = False) -> None:
        """`more`: the prompt has yet more tokens."""
        self._count = tokens
        self._tokens = f"more than {tokens}" if more else str(tokens)
        self._context = context
        head = f"this model's maximum context length is {context} tokens"
        super().__init__(
            f"{head}, and the prompt has {self._tokens}; shorten it, or start the server with a larger --ctx-size",
            param=param,
            code="context_length_exceeded",
        )

    def body(self, path: str) -> dict[str, Any]:
        """The error as the API at `path` writes it."""
        if is_anthropic(path):
            self.message = f"prompt is too long: {self._tokens} tokens > {self._context} maximum"
            return super().body(path)
        written = super().body(path)
        written["error"] |= {"n_prompt_tokens": self._count, "n_ctx": self._context}
        if not path.startswith("/v1/"):
            message = f"the request ({self._tokens} tokens) exceeds the available context size ({self._context} tokens)"
            remedy = "shorten it, or start the server with a larger --ctx-size"
            written["error"] |= {"type": "exceed_context_size_error", "message": f"{message}; {remedy}"}
        return written


def is_anthropic(path: str) -> bool:
    """Whether errors of this path have the shape of Anthropic's."""
    return path.startswith("/v1/messages")


def explained(error: BaseException) -> ApiError:
    """What the client is told of an exception. One that is not the user's to put right is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return ApiError("too many requests wait already; try again later", 429, code="queue_full")
    if isinstance(error, BusyError):
        return ApiError(str(error), 429, code="too_busy")
    if isinstance(error, TrigraphError):
        message = str(error)
        field = message.partition(" ")[0]
        return ApiError(message, param=field if field.isidentifier() and "_" in field else None)
    log.error("a request failed", exc_info=error)
    return ApiError("the server failed; its log says why", 500, code="internal_error")
