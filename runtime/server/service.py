"""What all requests of a server share."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Any

from trigraph.runtime import __version__
from trigraph.runtime.device.heap import trim_heap
from trigraph.runtime.images.limits import tokens_of_images
from trigraph.runtime.images.reader import ImageReader
from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.metrics import Metrics
from trigraph.runtime.server.settings import Settings

_LARGE = 1 << 18  # bytes of a body
_TRIMMING_SECONDS = 1.0


class Served(ABC):
    """What requests have in common, whatever model they ask for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.created = int(time.time())
        self.draining = False
        """Whether the server is about to end, and takes no new requests."""
        self.running = 0
        """Requests of clients that have not been answered in full."""
        self._held = 0
        self._trimming = False

    @abstractmethod
    async def of(self, body: bytes) -> Service:
        """The service of the model that a request names; `left` follows. Raises ApiError for an unknown one."""

    @abstractmethod
    async def named(self, name: str | None) -> Service:
        """The service of the model of that name, or of the first one; `left` follows."""

    @abstractmethod
    def left(self, service: Service, *, used: bool = True) -> None:
        """Takes note that a request of `service` has ended; one that only asks about the model has not `used` it."""

    @abstractmethod
    def described(self) -> list[dict[str, Any]]:
        """The models, as `/v1/models` has them."""

    @abstractmethod
    def described_as(self, name: str) -> dict[str, Any]:
        """A model by its name. Raises ApiError for an unknown one."""

    @abstractmethod
    def metrics_text(self) -> bytes:
        """All counters, in the text format of Prometheus."""

    @abstractmethod
    async def outage(self) -> str | None:
        """Why no request can be computed just now, if so."""

    async def tick(self) -> None:  # noqa: B027 (few need it)
        """Does what is due; called several times a second."""

    def description(self, name: str, engine: Backend | None) -> dict[str, Any]:
        """A model as `/v1/models` has it; without an engine, what is known of one that is not loaded."""
        known: dict[str, Any] = {}
        if engine is not None:
            meta: dict[str, Any] = {"n_ctx": engine.context, "n_vocab": engine.vocab}
            modalities = ["text"]
            if engine.tower is not None:
                least, most = tokens_of_images(engine.tower, engine.image_limits)
                meta["images"] = {"most": self.settings.max_images, "min_tokens": least, "max_tokens": most}
                modalities.append("image")
            architecture = {"input_modalities": modalities, "output_modalities": ["text"]}
            known = {"max_model_len": engine.context, "meta": meta, "architecture": architecture}
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": self.created,
            "created_at": self.created_at,
            "owned_by": "trigraph",
            "aliases": [name, *(self.settings.aliases if name == self.settings.model else ())],
            **known,
        }

    @property
    def version(self) -> str:
        """The program's version."""
        return __version__

    @property
    def created_at(self) -> str:
        """When the server was started, as RFC 3339 writes it."""
        return datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z")

    def hold(self, size: int) -> None:
        """Takes note of so many bytes more of a body. Raises ApiError when all that are being read have too many."""
        if self._held + size > self.settings.max_bodies:
            raise ApiError("the server reads too many large requests; try again later", 429, code="too_busy")
        self._held += size

    def release(self, size: int) -> None:
        """Takes note that a body of so many bytes is no longer held. What a large one took goes back to the system."""
        self._held -= size
        if size > _LARGE and not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_later(_TRIMMING_SECONDS, self._trim)

    def _trim(self) -> None:
        self._trimming = False
        trim_heap()


class Service(Served):
    """An engine, and how it is served."""

    def __init__(self, engine: Backend, settings: Settings) -> None:
        super().__init__(settings)
        self.engine = engine
        self.metrics = Metrics(engine, settings.model)
        self._reader: ImageReader | None = None
        self.users = 0
        """Requests that are in it."""

    @property
    def fingerprint(self) -> str:
        """Names the model's weights: the same ones give the same text for a seed, on whatever machine."""
        return f"fp_{self.engine.identity.weights[:12]}"

    @property
    def images(self) -> ImageReader | None:
        """What reads the images of requests; None where the model reads text only."""
        if (tower := self.engine.tower) is None:
            return None
        limits = self.engine.image_limits
        if self._reader is None or (self._reader.tower, self._reader.limits) != (tower, limits):
            self._reader = ImageReader(tower, limits)
        return self._reader

    async def of(self, body: bytes) -> Service:
        """This one, whatever name the request has."""
        return self

    async def named(self, name: str | None) -> Service:
        """This one."""
        return self

    def left(self, service: Service, *, used: bool = True) -> None:
        """Nothing follows."""

    def described(self) -> list[dict[str, Any]]:
        """The only model."""
        return [self.description(self.settings.model, self.engine)]

    def described_as(self, name: str) -> dict[str, Any]:
        """The only model. Raises ApiError for another name."""
        if name not in (self.settings.model, *self.settings.aliases):
            raise ApiError(f"the model here is {self.settings.model}", 404, param="model", code="model_not_found")
        return self.described()[0]

    def metrics_text(self) -> bytes:
        """All counters, in the text format of Prometheus."""
        return self.metrics.render()

    async def outage(self) -> str | None:
        """Why the engine cannot compute just now, if so."""
        return await self.engine.outage()
