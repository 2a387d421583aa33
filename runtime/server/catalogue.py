"""Several models in one server: each is loaded when a request asks for it, and unloaded when memory is needed."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from trigraph.models.errors import quote
from trigraph.runtime.device.heap import trim_heap
from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.errors import ApiError, log
from trigraph.runtime.server.metrics import rendered
from trigraph.runtime.server.service import Served, Service
from trigraph.runtime.server.settings import Settings


@dataclass
class Entry:
    """A model of the catalogue."""

    bytes: int
    """What its weights take."""
    load: Callable[[], tuple[Backend, Settings]]
    """Loads it, in a thread."""
    service: Service | None = None
    """While it is loaded."""
    used: float = 0.0
    """When a request of it ended last, by the monotonic clock."""


class _Named(BaseModel):
    model: str | None = None


class Catalogue(Served):
    """The models of a server by name; a request without a name gets the first one."""

    def __init__(
        self,
        settings: Settings,
        entries: Mapping[str, Entry],
        budget: int | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        """`budget`: bytes that loaded models may take together; None for no limit.

        `idle_seconds`: how long a model stays loaded that nobody uses; None for as long as there is room.
        """
        super().__init__(settings)
        self.entries, self.budget, self.idle_seconds = entries, budget, idle_seconds
        self._loading = asyncio.Lock()

    async def of(self, body: bytes) -> Service:
        """The service of the model that a request names. Raises ApiError for an unknown one."""
        try:
            name = (await asyncio.to_thread(_Named.model_validate_json, body)).model
        except ValidationError:  # whoever reads the body says what is wrong with it
            name = None
        return await self.named(name)

    async def named(self, name: str | None) -> Service:
        """The service of a model, which is loaded first unless it is there. It stays until `left`."""
        entry = self._entry(name)
        if entry.service is None:
            async with self._loading:
                if entry.service is None:
                    self._make_room(entry)
                    entry.service = Service(*await asyncio.to_thread(entry.load))
                    entry.used = time.monotonic()
        entry.service.users += 1
        return entry.service

    def left(self, service: Service, *, used: bool = True) -> None:
        """Takes note that a request has ended; one that only asks about the model has not `used` it."""
        service.users -= 1
        for entry in self.entries.values():
            if used and entry.service is service:
                entry.used = time.monotonic()

    def described(self) -> list[dict[str, Any]]:
        """The models, whether they are loaded or not."""
        return [self.described_as(name) for name in self.entries]

    def described_as(self, name: str) -> dict[str, Any]:
        """A model by its name. Raises ApiError."""
        service = self._entry(name).service
        state = {"status": {"value": "unloaded" if service is None else "loaded"}}
        return self.description(name, None if service is None else service.engine) | state

    def metrics_text(self) -> bytes:
        """Those of the models that are loaded."""
        return rendered([entry.service.metrics for entry in self.entries.values() if entry.service is not None])

    async def outage(self) -> str | None:
        """Never: a model that cannot be loaded fails the requests that name it."""
        return None

    async def tick(self) -> None:
        """Unloads what nobody has used for long."""
        if self.idle_seconds is None or self._loading.locked():
            return
        for name, entry in self.entries.items():
            if _is_idle(entry) and time.monotonic() - entry.used > self.idle_seconds:
                async with self._loading:
                    if _is_idle(entry):
                        _unload(name, entry)

    def _entry(self, name: str | None) -> Entry:
        if name is None:
            return next(iter(self.entries.values()))
        if (entry := self.entries.get(name)) is None:
            names = ", ".join(self.entries)
            raise ApiError(
                f"model is {quote(name)}; the models here are {names}", 404, param="model", code="model_not_found"
            )
        return entry

    def _make_room(self, wanted: Entry) -> None:
        """Unloads models, the one first that was not used for longest. Raises ApiError where too many are in use."""
        loaded = {name: entry for name, entry in self.entries.items() if entry.service is not None}
        while loaded and self.budget is not None and wanted.bytes + sum(e.bytes for e in loaded.values()) > self.budget:
            idle = [name for name, entry in loaded.items() if _is_idle(entry)]
            if not idle:
                raise ApiError(
                    "the memory for models is taken by others that are in use; try again later", 503, code="model_busy"
                )
            oldest = min(idle, key=lambda name: loaded[name].used)
            _unload(oldest, loaded.pop(oldest))


def _is_idle(entry: Entry) -> bool:
    return entry.service is not None and not entry.service.users


def _unload(name: str, entry: Entry) -> None:
    service, entry.service = entry.service, None
    if service is not None:
        service.engine.close()
    del service
    gc.unfreeze()  # what was frozen when it was loaded would stay
    gc.collect()
    trim_heap()
    log.info("%s: unloaded", name)
