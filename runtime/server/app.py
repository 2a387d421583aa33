"""The models of a server by name. Where there are several, each is loaded when a request asks for it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from trigraph.models.errors import quote
from trigraph.runtime.device.heap import trim_heap
from trigraph.runtime.images.limits import tokens_of_images
from trigraph.runtime.images.reader import ImageReader
from trigraph.runtime.server.backend import Backend
from trigraph.runtime.server.errors import ApiError, log
from trigraph.runtime.server.metrics import Metrics, rendered
from trigraph.runtime.server.settings import Settings

_LARGE = 1 << 18  # bytes of a body
_TRIMMING_SECONDS = 1.0


class ServedModel:
    """A model that is loaded: its engine, and how it is served."""

    def __init__(self, engine: Backend, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        self.metrics = Metrics(engine, settings.model)
        self.users = 0
        """Requests that are in it."""
        self._reader: ImageReader | None = None

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

    def facts(self) -> dict[str, Any]:
        """What `/v1/models` tells of it beside its name."""
        engine = self.engine
        meta: dict[str, Any] = {"n_ctx": engine.context, "n_vocab": engine.vocab}
        modalities = ["text"]
        if engine.tower is not None:
            least, most = tokens_of_images(engine.tower, engine.image_limits)
            meta["images"] = {"most": self.settings.max_images, "min_tokens": least, "max_tokens": most}
            modalities.append("image")
        architecture = {"input_modalities": modalities, "output_modalities": ["text"]}
        return {"max_model_len": engine.context, "meta": meta, "architecture": architecture}


@dataclass
class Entry:
    """A model that requests choose by its name."""

    bytes: int
    """What its weights take."""
    load: Callable[[], tuple[Backend, Settings]]
    """Loads it, in a thread."""
    model: ServedModel | None = None
    """While it is loaded."""
    used: float = 0.0
    """When a request of it ended last, by the monotonic clock."""

    @property
    def idle(self) -> bool:
        """Whether it is loaded, and no request is in it."""
        return self.model is not None and not self.model.users


class _Named(BaseModel):
    model: str | None = None


class App:
    """The server's models, and what their requests have in common."""

    def __init__(
        self,
        settings: Settings,
        models: ServedModel | Mapping[str, Entry],
        budget: int | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        """`models`: the only one, which requests get whatever they call it; or several, the first one for requests
        without a name. `budget`: bytes that loaded models may take together; None for no limit. `idle_seconds`: how
        long a model stays loaded that nobody uses; None for as long as there is room.
        """
        self.settings, self.budget, self.idle_seconds = settings, budget, idle_seconds
        self.only = models if isinstance(models, ServedModel) else None
        """The model, if there is one alone."""
        self.entries = {} if isinstance(models, ServedModel) else models
        self.created = int(time.time())
        self.draining = False
        """Whether the server is about to end, and takes no new requests."""
        self.running = 0
        """Requests of clients that have not been answered in full."""
        self._held = 0
        self._trimming = False
        self._loading = asyncio.Lock()

    @classmethod
    def of(cls, model: ServedModel) -> App:
        """An app of one model."""
        return cls(model.settings, model)

    async def named_in(self, body: bytes) -> ServedModel:
        """The model that a request names; `left` follows. Raises ApiError for an unknown one."""
        if self.only is not None:  # whatever name the request has
            return await self.named(None)
        try:
            name = (await asyncio.to_thread(_Named.model_validate_json, body)).model
        except ValidationError:  # whoever reads the body says what is wrong with it
            name = None
        return await self.named(name)

    async def named(self, name: str | None) -> ServedModel:
        """The model of a name, which is loaded first unless it is there. It stays until `left`."""
        model = self.only
        if model is None:
            entry = self._entry(name)
            if entry.model is None:
                async with self._loading:
                    if entry.model is None:
                        self._make_room(entry)
                        entry.model = ServedModel(*await asyncio.to_thread(entry.load))
                        entry.used = time.monotonic()
            model = entry.model
        model.users += 1
        return model

    def left(self, model: ServedModel, *, used: bool = True) -> None:
        """Takes note that a request has ended; one that only asks about the model has not `used` it."""
        model.users -= 1
        for entry in self.entries.values():
            if used and entry.model is model:
                entry.used = time.monotonic()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Counts a request until it is answered in full. Raises ApiError when the server is about to end."""
        if self.draining:
            raise ApiError("the server is about to end; try another one", 503, code="draining")
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def described(self) -> list[dict[str, Any]]:
        """The models, as `/v1/models` has them, whether they are loaded or not."""
        return [self.described_as(name) for name in self.entries or (self.settings.model,)]

    def described_as(self, name: str) -> dict[str, Any]:
        """A model by its name. Raises ApiError for an unknown one."""
        own, state = self.settings.model, {}
        if (model := self.only) is None:
            model = self._entry(name).model
            state = {"status": {"value": "unloaded" if model is None else "loaded"}}
        elif name in (own, *self.settings.aliases):
            name = own
        else:
            raise ApiError(f"the model here is {own}", 404, param="model", code="model_not_found")
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": self.created,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z"),
            "owned_by": "trigraph",
            "aliases": [name, *(self.settings.aliases if name == own else ())],
            **({} if model is None else model.facts()),
            **state,
        }

    def metrics_text(self) -> bytes:
        """The counters of all models that are loaded, in the text format of Prometheus."""
        models = [entry.model for entry in self.entries.values()] if self.only is None else [self.only]
        return rendered([model.metrics for model in models if model is not None])

    async def outage(self) -> str | None:
        """Why no request can be computed just now, if so. One of several models fails the requests that name it."""
        return None if self.only is None else await self.only.engine.outage()

    async def tick(self) -> None:
        """Unloads what nobody has used for long; called several times a second."""
        if self.idle_seconds is None or self._loading.locked():
            return
        for name, entry in self.entries.items():
            if entry.idle and time.monotonic() - entry.used > self.idle_seconds:
                async with self._loading:
                    if entry.idle:
                        _unload(name, entry)

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
        loaded = {name: entry for name, entry in self.entries.items() if entry.model is not None}
        while loaded and self.budget is not None and wanted.bytes + sum(e.bytes for e in loaded.values()) > self.budget:
            idle = [name for name, entry in loaded.items() if entry.idle]
            if not idle:
                raise ApiError(
                    "the memory for models is taken by others that are in use; try again later", 503, code="model_busy"
                )
            oldest = min(idle, key=lambda name: loaded[name].used)
            _unload(oldest, loaded.pop(oldest))


def _unload(name: str, entry: Entry) -> None:
    model, entry.model = entry.model, None
    if model is not None:
        model.engine.close()
    del model
    gc.unfreeze()  # what was frozen when it was loaded would stay
    gc.collect()
    trim_heap()
    log.info("%s: unloaded", name)
