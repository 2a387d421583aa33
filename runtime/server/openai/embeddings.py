"""OpenAI's embeddings: the pooled hidden rows of texts, of length 1."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trigraph.runtime.requests.embedding import embedding, pooled
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.exchange import Job, sent_event
from trigraph.runtime.server.generation import Generation, merged
from trigraph.runtime.server.prompt import prompts_of
from trigraph.runtime.server.schema import Ids, Items, Schema, parse, unsupported
from trigraph.runtime.server.service import Service

_MOST = 1000  # texts of a request


class EmbeddingRequest(Schema):
    """A request for embeddings."""

    model: str | None = None
    input: str | Items[str] | Ids | Items[Ids]
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["last", "mean"] | None = None
    dimensions: Annotated[Any, unsupported("leave it out")] = None
    user: Annotated[str | None, Field(description="ignored")] = None


class Embeddings(Job):
    """A request for embeddings."""

    stream = False

    def __init__(self, service: Service, body: bytes) -> None:
        """Raises ApiError or TrigraphError for what is wrong with the request."""
        fields = parse(EmbeddingRequest, body)
        engine = service.engine
        prompts = prompts_of(engine, fields.input, "input")
        if len(prompts) > _MOST:
            raise ApiError(f"input has {len(prompts)} texts; at most {_MOST} are computed at once", param="input")
        self._pooling = fields.pooling or "last"
        self._base64 = fields.encoding_format == "base64"
        self._model = service.settings.model
        self._tokens = sum(map(len, prompts))
        self.generations = [
            Generation(engine.generate(*embedding(prompt, self._pooling, engine.context))) for prompt in prompts
        ]

    async def result(self) -> dict[str, Any]:
        """The embeddings, in the order of the texts."""
        async for _ in merged(self.generations):
            pass
        rows = [pooled(generation.request.hidden, self._pooling) for generation in self.generations]
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": self._encoded(normalised(row))}
                for i, row in enumerate(rows)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": self._tokens, "total_tokens": self._tokens},
        }

    async def events(self) -> AsyncIterator[bytes]:
        """None: embeddings are not streamed."""
        return
        yield b""

    def failed(self, error: ApiError) -> bytes:
        """The error as an event."""
        return sent_event(error.body("/v1/embeddings"))

    def _encoded(self, row: NDArray[np.float32]) -> list[float] | str:
        return base64.b64encode(row.astype("<f4").tobytes()).decode() if self._base64 else row.tolist()


def normalised(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """The row [hidden] divided by its length, with the same bits on every machine."""
    length = math.sqrt(math.fsum((row.astype(np.float64) ** 2).tolist()))
    scaled: NDArray[np.float32] = (row / (length or 1.0)).astype(np.float32)
    return scaled
