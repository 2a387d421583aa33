"""What all requests of a server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.metrics import Metrics
from trigraph.runtime.server.settings import Settings


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

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.engine, self.settings.model)

    @property
    def created_at(self) -> str:
        """When the server was started, as RFC 3339 writes it."""
        return datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z")

    @property
    def fingerprint(self) -> str:
        """Names the model's weights: the same ones give the same text for a seed, on whatever machine."""
        return f"fp_{self.engine.identity.weights[:12]}"
