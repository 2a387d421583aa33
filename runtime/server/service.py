"""What all requests of a server share."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from trigraph.runtime import __version__
from trigraph.runtime.device.heap import trim_heap
from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.errors import ApiError
from trigraph.runtime.server.metrics import Metrics
from trigraph.runtime.server.settings import Settings

_LARGE = 1 << 18  # bytes of a body
_TRIMMING_SECONDS = 1.0


@dataclass
class Service:
    """The engine, and how it is served."""

    engine: Backend
    settings: Settings
    metrics: Metrics = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    """Whether the server is about to end, and takes no new requests."""
    running: int = 0
    """Requests of clients that have not been answered in full."""
    _held: int = 0
    _trimming: bool = False

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.engine, self.settings.model)

    @property
    def version(self) -> str:
        """The program's version."""
        return __version__

    @property
    def created_at(self) -> str:
        """When the server was started, as RFC 3339 writes it."""
        return datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z")

    @property
    def fingerprint(self) -> str:
        """Names the model's weights: the same ones give the same text for a seed, on whatever machine."""
        return f"fp_{self.engine.identity.weights[:12]}"

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
