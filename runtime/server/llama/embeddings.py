"""llama-server's own embeddings: a list, with a list of rows for each text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.openai.embeddings import EmbeddingJob, Pooling, normalised
from trigraph.runtime.server.plain_prompt import PlainPrompts
from trigraph.runtime.server.schema import NoReceipt, Schema, parse


class NativeEmbeddingRequest(Schema):
    """A request for embeddings: of length 1, or with an `embd_normalize` of -1 as the model gives them."""

    content: Annotated[PlainPrompts, Field(validation_alias=AliasChoices("content", "input"))]
    pooling: Pooling | None = None
    embd_normalize: Literal[-1, 2] = 2
    receipt: NoReceipt = None


class NativeEmbeddings(EmbeddingJob):
    """Embeddings as llama-server writes them."""

    def __init__(self, model: ServedModel, body: bytes) -> None:
        """Raises ApiError or TrigraphError for what is wrong with the request."""
        fields = parse(NativeEmbeddingRequest, body)
        super().__init__(model, fields.content, fields.pooling, "content")
        self._normalise = fields.embd_normalize == 2

    def written(self) -> list[dict[str, Any]]:
        """The embeddings, in the order of the texts."""
        return [
            {"index": i, "embedding": [(normalised(row) if self._normalise else row).tolist()]}
            for i, row in enumerate(self.rows)
        ]
