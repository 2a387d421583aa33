"""OpenAI's embeddings: the pooled hidden rows of texts, of length 1."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trigraph.runtime.requests.embedding import embedding, pooled
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.job import Generation, Job, merged, sent_event
from trigraph.runtime.server.plain_prompt import PlainPrompts, are_many, plain_prompts
from trigraph.runtime.server.schema import NoReceipt, Schema, parse, unsupported

_MOST = 2048  # texts of a request: OpenAI's limit
_AT_ONCE = 64  # of them that are queued: requests of others find room among them

Pooling = Literal["last", "mean"]


class EmbeddingRequest(Schema):
    """A request for embeddings."""

    model: str | None = None
    input: PlainPrompts
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Pooling | None = None
    dimensions: Annotated[Any, unsupported("leave it out")] = None
    receipt: NoReceipt = None
    user: Annotated[str | None, Field(description="ignored")] = None


class EmbeddingJob(Job):
    """Texts whose hidden rows are pooled."""

    stream = False

    def __init__(self, model: ServedModel, given: PlainPrompts, pooling: Pooling | None, param: str) -> None:
        """`param`: the field that has the texts. Raises ApiError or TrigraphError for what is wrong with them."""
        if isinstance(given, list) and len(given) > _MOST and are_many(given):
            raise ApiError(f"{param} has {len(given)} texts; at most {_MOST} are computed at once", param=param)
        engine = model.engine
        prompts = plain_prompts(engine, given, param)
        self.tokens = sum(map(len, prompts))
        self.model = model
        self._pooling = pooling or "last"
        self.rows: list[NDArray[np.float32]] = []
        """The pooled row [hidden] of each text, in order."""
        self.generations = [
            Generation(engine.generate(*embedding(prompt, self._pooling, engine.context))) for prompt in prompts
        ]

    async def begin(self, generations: Sequence[Generation] | None = None) -> None:
        """Queues some of the texts; the first ones, unless told otherwise."""
        await super().begin(self.generations[:_AT_ONCE] if generations is None else generations)

    async def finish(self) -> None:
        """Computes the rows."""
        for start in range(0, len(self.generations), _AT_ONCE):
            some = self.generations[start : start + _AT_ONCE]
            if start:
                await self.begin(some)
            async for _ in merged(some):
                pass
            for generation in some:
                self.rows.append(pooled(generation.request.hidden, self._pooling))
                generation.request.hidden.clear()  # those of all tokens of all texts would not fit

    async def events(self) -> AsyncIterator[bytes]:
        """None: embeddings are not streamed."""
        return
        yield b""

    def failed(self, error: ApiError) -> bytes:
        """The error as an event."""
        return sent_event(error.body("/v1/embeddings"))


class Embeddings(EmbeddingJob):
    """Embeddings as OpenAI writes them."""

    def __init__(self, model: ServedModel, body: bytes) -> None:
        """Raises ApiError or TrigraphError for what is wrong with the request."""
        fields = parse(EmbeddingRequest, body)
        super().__init__(model, fields.input, fields.pooling, "input")
        self._base64 = fields.encoding_format == "base64"
        self._model = model.settings.model

    def written(self) -> dict[str, Any]:
        """The embeddings, in the order of the texts."""
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": self._encoded(normalised(row))}
                for i, row in enumerate(self.rows)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": self.tokens, "total_tokens": self.tokens},
        }

    def _encoded(self, row: NDArray[np.float32]) -> list[float] | str:
        return base64.b64encode(row.astype("<f4").tobytes()).decode() if self._base64 else row.tolist()


def normalised(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """The row [hidden] divided by its length, with the same bits on every machine."""
    length = math.sqrt(math.fsum((row.astype(np.float64) ** 2).tolist()))
    scaled: NDArray[np.float32] = (row / (length or 1.0)).astype(np.float32)
    return scaled
